/* mapped.c - a worker that runs one all_reduce and then checks which libraries its process has loaded.
 *
 *     mapped [+NAME | -NAME]...     NAME is part of a file's name in /proc/self/maps: + it must be there, -
 * it must not
 *
 * Exit status 0: the sum is right, and all libraries are as asked. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <weft/weft.h>

enum { COUNT = 50000 };

extern char **environ; /* a program at a fixed address has the valid copy of it */

static float values[COUNT];

static bool is_mapped(const char *name)
{
    char line[4096];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        const char *file = strrchr(line, '/');
        found = found || (file && strstr(file, name));
    }
    if (maps) fclose(maps);
    return found;
}

static int fail(const char *what, const struct weft_session *session)
{
    fprintf(stderr, "mapped: %s: %s\n", what, weft_error_text(session));
    return 1;
}

static int run_job(void)
{
    struct weft_session *session = NULL;
    struct weft_request request = {{0}};
    if (weft_init(NULL, &session) != WEFT_OK) return fail("weft_init", NULL);
    for (int i = 0; i < COUNT; i++) values[i] = (float)(i % 7);
    if (weft_all_reduce(session, values, values, COUNT, WEFT_F32, WEFT_SUM, &request) < 0 ||
        weft_wait(&request, 0) != WEFT_OK)
        return fail("weft_all_reduce", session);
    const float ranks = (float)weft_ranks(session);
    if (weft_finalize(session) != WEFT_OK) return fail("weft_finalize", NULL);
    for (int i = 0; i < COUNT; i++) {
        if (values[i] == ranks * (float)(i % 7)) continue;
        fprintf(stderr, "mapped: element %d is %g, not %g\n", i, (double)values[i],
                (double)(ranks * (float)(i % 7)));
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int bad = !environ || !environ[0] || run_job();
    for (int i = 1; i < argc; i++) {
        const bool wanted = argv[i][0] == '+';
        if (is_mapped(argv[i] + 1) == wanted) continue;
        fprintf(stderr, "mapped: %s is %s\n", argv[i] + 1, wanted ? "not loaded" : "loaded");
        bad = 1;
    }
    return bad;
}
