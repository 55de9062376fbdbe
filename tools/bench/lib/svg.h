/* svg.h - what charts and heat maps share: text of an SVG, and its file. */
#ifndef WEFT_TOOLS_BENCH_LIB_SVG_H
#define WEFT_TOOLS_BENCH_LIB_SVG_H

#include <stdbool.h>
#include <stdio.h>

#define BENCH_SVG_INK "#1f2933"
#define BENCH_SVG_SOFT "#6b7785"

/* Opens an image of this size with a white background. The caller ends it with "</svg>\n". */
void bench_svg_open(FILE *out, double width, double height);
/* `anchor` is start, middle or end; `extra` has further attributes, each after a space. `text` is escaped. */
void bench_svg_text(FILE *out, double x, double y, const char *anchor, double size, const char *fill,
                    const char *extra, const char *text);

/* Draws `picture` as the SVG `path`, or for a name that ends in ".png" as a PNG made by rsvg-convert. False:
 * the sentence, which begins with `command`, is on stderr. */
bool bench_svg_write_file(const char *command, const char *path, bool (*draw)(const void *picture, FILE *out),
                          const void *picture);

#endif
