/* chart.c - see chart.h. The plot area is mapped once (struct frame), and every drawing function uses that
 * map. */
#include "tools/bench/lib/chart.h"

#include <math.h>
#include <string.h>

#include "base/weft_assert.h"
#include "tools/bench/lib/svg.h"
#include "tools/size.h"

enum { TICKS_MAX = 32, LEFT = 72, TOP = 62, BOTTOM = 58, LEGEND = 222 };

#define INK BENCH_SVG_INK
#define SOFT BENCH_SVG_SOFT
#define GRID "#e6eaee"

static const char *const palette[] = {"#0b6fb8", "#d9480f", "#2b8a3e", "#9c36b5",
                                      "#c99700", "#0c8599", "#c2255c", "#495057"};
enum { PALETTE_COUNT = sizeof(palette) / sizeof(palette[0]) };

struct scale {
    double min, max;
    bool log, bytes;
    double from, to; /* pixels */
};

struct frame {
    struct scale x, y;
    double width, height;
};

static double scale_map(const struct scale *scale, double value)
{
    double low = scale->log ? log10(scale->min) : scale->min,
           high = scale->log ? log10(scale->max) : scale->max;
    double at = scale->log ? log10(value) : value;
    return scale->from + (at - low) / (high - low) * (scale->to - scale->from);
}

static bool drawable(const struct bench_axis *axis, double value)
{
    return isfinite(value) && (!axis->log || value > 0);
}

size_t bench_chart_ticks(double min, double max, bool log, double *ticks, size_t capacity)
{
    size_t count = 0;
    if (log) {
        double decades = log10(max / min);
        static const double every[] = {1, 2, 5}, some[] = {1, 3}, few[] = {1};
        const double *parts = decades <= 2.2 ? every : decades <= 4 ? some : few;
        size_t part_count = decades <= 2.2 ? 3 : decades <= 4 ? 2 : 1;
        for (double decade = floor(log10(min)); decade <= ceil(log10(max)); decade++) {
            for (size_t p = 0; p < part_count; p++) {
                double tick = parts[p] * pow(10, decade);
                if (tick >= min * 0.9999 && tick <= max * 1.0001 && count < capacity) ticks[count++] = tick;
            }
        }
        return count;
    }
    double rough = (max - min) / 6, unit = pow(10, floor(log10(rough)));
    double step = rough / unit < 1.5   ? unit
                  : rough / unit < 3.5 ? 2 * unit
                  : rough / unit < 7.5 ? 5 * unit
                                       : 10 * unit;
    for (double tick = ceil(min / step - 1e-9) * step; tick <= max + step * 1e-9 && count < capacity;
         tick += step) {
        ticks[count++] = fabs(tick) < step * 1e-9 ? 0 : tick;
    }
    return count;
}

size_t bench_chart_ticks_binary(double min, double max, double *ticks, size_t capacity)
{
    const int first = (int)ceil(log2(min) - 1e-9), last = (int)floor(log2(max) + 1e-9);
    int step = 1;
    size_t count = 0;
    while ((last - first) / step >= 8) step *= 2;
    /* multiples of the step: 1, 16, 256 ... on every chart of this range */
    for (int power = first; power <= last && count < capacity; power++)
        if (power % step == 0) ticks[count++] = ldexp(1, power);
    return count;
}

static size_t scale_ticks(const struct scale *scale, double *ticks)
{
    if (scale->log && scale->bytes) return bench_chart_ticks_binary(scale->min, scale->max, ticks, TICKS_MAX);
    return bench_chart_ticks(scale->min, scale->max, scale->log, ticks, TICKS_MAX);
}

/* The range of one axis: as given, or around the points with a margin. */
static bool find_scale(const struct bench_chart *chart, bool vertical, struct scale *scale)
{
    const struct bench_axis *axis = vertical ? &chart->y : &chart->x;
    double low = INFINITY, high = -INFINITY;
    for (size_t s = 0; s < chart->series_count; s++) {
        const struct bench_series *series = &chart->series[s];
        for (size_t i = 0; i < series->count; i++) {
            double value = vertical ? series->y[i] : series->x[i];
            if (!drawable(&chart->x, series->x[i]) || !drawable(&chart->y, series->y[i])) continue;
            low = fmin(low, value);
            high = fmax(high, value);
        }
    }
    if (!(low <= high)) return false;
    if (axis->log) {
        low /= 1.08;
        high *= 1.08;
    } else {
        double air = high > low ? 0.03 * (high - low) : fabs(high) * 0.1 + 1e-9;
        low = low >= 0 && low - air < 0 ? 0 : low - air;
        high += air;
    }
    scale->min = isfinite(axis->min) && (!axis->log || axis->min > 0) ? axis->min : low;
    scale->max = isfinite(axis->max) ? axis->max : high;
    if (!(scale->max > scale->min)) scale->max = axis->log ? scale->min * 10 : scale->min + 1;
    scale->log = axis->log;
    scale->bytes = axis->bytes;
    return true;
}

static void format_tick(const struct scale *scale, double value, char *out, size_t out_bytes)
{
    if (scale->log && scale->bytes && value >= 1) tool_size_format((uint64_t)value, out, out_bytes);
    else if (fabs(value) >= 1e6) snprintf(out, out_bytes, "%gM", value / 1e6);
    else if (fabs(value) >= 1e3) snprintf(out, out_bytes, "%gk", value / 1e3);
    else snprintf(out, out_bytes, "%g", value);
}

static void draw_axes(const struct bench_chart *chart, const struct frame *frame, FILE *out)
{
    double ticks[TICKS_MAX];
    char text[32];
    size_t count = scale_ticks(&frame->x, ticks);
    for (size_t i = 0; i < count; i++) {
        double at = scale_map(&frame->x, ticks[i]);
        fprintf(out, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"" GRID "\"/>\n", at, frame->y.to, frame->y.from);
        format_tick(&frame->x, ticks[i], text, sizeof(text));
        bench_svg_text(out, at, frame->y.from + 18, "middle", 12, SOFT, "", text);
    }
    count = scale_ticks(&frame->y, ticks);
    for (size_t i = 0; i < count; i++) {
        double at = scale_map(&frame->y, ticks[i]);
        fprintf(out, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"" GRID "\"/>\n", frame->x.from, at, frame->x.to);
        format_tick(&frame->y, ticks[i], text, sizeof(text));
        bench_svg_text(out, frame->x.from - 9, at + 4, "end", 12, SOFT, "", text);
    }
    fprintf(out, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"" SOFT "\" stroke-width=\"1.2\"/>\n", frame->x.from,
            frame->y.from, frame->x.to);
    bench_svg_text(out, (frame->x.from + frame->x.to) / 2, frame->height - 16, "middle", 13, INK, "",
                   chart->x.label);
    double middle = (frame->y.from + frame->y.to) / 2;
    snprintf(text, sizeof(text), " transform=\"rotate(-90)\"");
    bench_svg_text(out, -middle, 20, "middle", 13, INK, text, chart->y.label);
}

static void draw_series(const struct bench_chart *chart, const struct frame *frame,
                        const struct bench_series *series, FILE *out)
{
    const char *color = palette[series->color % PALETTE_COUNT];
    bool first = true;
    double x = 0, y = 0;
    fputs("<path d=\"", out);
    for (size_t i = 0; i < series->count; i++) {
        if (!drawable(&chart->x, series->x[i]) || !drawable(&chart->y, series->y[i])) continue;
        x = scale_map(&frame->x, series->x[i]);
        y = scale_map(&frame->y, series->y[i]);
        fprintf(out, "%s%.1f %.1f", first ? "M" : "L", x, y);
        first = false;
    }
    fprintf(out,
            "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2.2\" stroke-linejoin=\"round\" "
            "stroke-linecap=\"round\"%s "
            "clip-path=\"url(#plot)\"/>\n",
            color, series->dashed ? " stroke-dasharray=\"7 5\"" : "");
    if (!first)
        fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.6\" fill=\"%s\" clip-path=\"url(#plot)\"/>\n", x,
                y, color);
}

static void draw_legend(const struct bench_chart *chart, const struct frame *frame, FILE *out)
{
    double left = frame->x.to + 18, top = frame->y.to + 8;
    for (size_t s = 0; s < chart->series_count; s++) {
        const struct bench_series *series = &chart->series[s];
        double at = top + 22 * (double)s;
        fprintf(out, "<path d=\"M%.1f %.1fh26\" stroke=\"%s\" stroke-width=\"2.4\"%s/>\n", left, at,
                palette[series->color % PALETTE_COUNT], series->dashed ? " stroke-dasharray=\"7 5\"" : "");
        bench_svg_text(out, left + 34, at + 4, "start", 12.5, INK, "", series->name);
    }
}

bool bench_chart_write(const struct bench_chart *chart, FILE *out)
{
    struct frame frame = {.width = chart->width ? chart->width : 880,
                          .height = chart->height ? chart->height : 480};
    WEFT_ASSERT(frame.width > LEFT + LEGEND && frame.height > TOP + BOTTOM);
    if (!find_scale(chart, false, &frame.x) || !find_scale(chart, true, &frame.y)) return false;
    frame.x.from = LEFT;
    frame.x.to = frame.width - LEGEND;
    frame.y.from = frame.height - BOTTOM; /* y grows upwards */
    frame.y.to = TOP;

    bench_svg_open(out, frame.width, frame.height);
    fprintf(out, "<clipPath id=\"plot\"><rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\"/></clipPath>\n",
            frame.x.from, frame.y.to - 4, frame.x.to - frame.x.from + 5, frame.y.from - frame.y.to + 8);
    bench_svg_text(out, LEFT, 26, "start", 17, INK, " font-weight=\"bold\"", chart->title);
    if (chart->subtitle) bench_svg_text(out, LEFT, 46, "start", 12.5, SOFT, "", chart->subtitle);
    draw_axes(chart, &frame, out);
    for (size_t s = 0; s < chart->series_count; s++) draw_series(chart, &frame, &chart->series[s], out);
    draw_legend(chart, &frame, out);
    fputs("</svg>\n", out);
    return fflush(out) == 0 && !ferror(out);
}
