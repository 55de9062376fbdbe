/* svg.c - see svg.h. */
#include "tools/bench/lib/svg.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

static bool write_svg(const char *command, const char *path, bool (*draw)(const void *picture, FILE *out),
                      const void *picture)
{
    FILE *out = fopen(path, "we");
    bool fine = out && draw(picture, out);
    if (out) fine = fclose(out) == 0 && fine;
    if (!fine) fprintf(stderr, "%s: the plot %s cannot be written: %s\n", command, path, strerror(errno));
    return fine;
}

/* By execvp, not by a shell: a path may contain any byte. */
static bool convert(const char *command, const char *svg, const char *png)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        execlp("rsvg-convert", "rsvg-convert", "-o", png, svg, (char *)NULL);
        fprintf(stderr,
                "%s: a PNG is made by rsvg-convert (Debian: librsvg2-bin), which cannot be started: %s; name "
                "an SVG file\n",
                command, strerror(errno));
        _exit(127);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool bench_svg_write_file(const char *command, const char *path, bool (*draw)(const void *picture, FILE *out),
                          const void *picture)
{
    const size_t length = strlen(path);
    if (length < 4 || strcmp(path + length - 4, ".png") != 0) return write_svg(command, path, draw, picture);
    char svg[4096];
    if (snprintf(svg, sizeof svg, "%s.svg", path) >= (int)sizeof svg) {
        fprintf(stderr, "%s: --plot: the path is too long\n", command);
        return false;
    }
    const bool fine = write_svg(command, svg, draw, picture) && convert(command, svg, path);
    unlink(svg);
    return fine;
}
