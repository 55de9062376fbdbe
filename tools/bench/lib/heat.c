/* heat.c - see heat.h. */
#include "tools/bench/lib/heat.h"

#include <math.h>
#include <string.h>

#include "tools/bench/lib/samples.h"
#include "tools/bench/lib/svg.h"

enum { CELL = 56, ROW = 34, TOP = 96, MARGIN = 24, CHARACTER = 8, NAME_MAX = 24, WIDTH_MIN = 560 };

struct color {
    double red, green, blue;
};

static const struct color low = {201, 42, 42}, middle = {248, 249, 250}, high = {11, 111, 184};

static struct color mix(struct color a, struct color b, double share)
{
    return (struct color){a.red + (b.red - a.red) * share, a.green + (b.green - a.green) * share,
                          a.blue + (b.blue - a.blue) * share};
}

/* `share`: 0.5 is the median. */
static struct color color_of(double share)
{
    return share < 0.5 ? mix(low, middle, 2 * share) : mix(middle, high, 2 * share - 1);
}

static double name_width(const struct bench_heat *heat)
{
    size_t longest = 0;
    for (size_t i = 0; i < heat->count; i++) {
        size_t bytes = strlen(heat->names[i]);
        longest = bytes > longest ? bytes : longest;
    }
    return CHARACTER * (double)(longest < NAME_MAX ? longest : NAME_MAX) + MARGIN;
}

static void write_name(FILE *out, double x, double y, const char *anchor, const char *name)
{
    char text[NAME_MAX + 1];
    snprintf(text, sizeof text, "%s", name);
    bench_svg_text(out, x, y, anchor, 12, BENCH_SVG_INK, "", text);
}

static void write_cell(FILE *out, double x, double y, double value, double median)
{
    char text[32];
    const double share = fmin(0.5 * value / median, 1);
    const struct color color = color_of(share);
    fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"#%02x%02x%02x\"/>\n", x, y,
            CELL - 2, ROW - 2, (unsigned)color.red, (unsigned)color.green, (unsigned)color.blue);
    snprintf(text, sizeof text, "%.3g", value);
    /* white on the dark ends of the scale */
    bench_svg_text(out, x + CELL / 2.0 - 1, y + ROW / 2.0 + 3, "middle", 11,
                   share < 0.2 || share > 0.75 ? "#ffffff" : BENCH_SVG_INK, "", text);
}

bool bench_heat_write(const struct bench_heat *heat, FILE *out)
{
    const size_t count = heat->count;
    const double median = bench_median_finite(heat->values, count * count);
    if (!(median > 0)) return false;
    const double left = name_width(heat), side = CELL * (double)count;
    bench_svg_open(out, fmax(left + side + MARGIN, WIDTH_MIN), TOP + ROW * (double)count + MARGIN);
    bench_svg_text(out, MARGIN, 28, "start", 17, BENCH_SVG_INK, " font-weight=\"bold\"", heat->title);
    bench_svg_text(out, MARGIN, 50, "start", 12.5, BENCH_SVG_SOFT, "", heat->subtitle);
    for (size_t i = 0; i < count; i++) {
        const double y = TOP + ROW * (double)i;
        write_name(out, left + CELL * ((double)i + 0.5), TOP - 10, "middle", heat->names[i]);
        write_name(out, left - 10, y + ROW / 2.0 + 3, "end", heat->names[i]);
        for (size_t j = 0; j < count; j++) {
            const double value = heat->values[i * count + j];
            if (isfinite(value) && value >= 0) write_cell(out, left + CELL * (double)j, y, value, median);
        }
    }
    fputs("</svg>\n", out);
    return fflush(out) == 0 && !ferror(out);
}
