/* svg.c - see svg.h. */
#include "tools/bench/lib/svg.h"

static void write_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        default: fputc(*text, out);
        }
    }
}

void bench_svg_text(FILE *out, double x, double y, const char *anchor, double size, const char *fill,
                    const char *extra, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%g\" fill=\"%s\"%s>", x, y,
            anchor, size, fill, extra);
    write_escaped(out, text);
    fputs("</text>\n", out);
}

void bench_svg_open(FILE *out, double width, double height)
{
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
            "font-family=\"'DejaVu Sans', Helvetica, Arial, sans-serif\">\n",
            width, height, width, height);
    fprintf(out, "<rect width=\"%g\" height=\"%g\" fill=\"#ffffff\"/>\n", width, height);
}
