/* unfinished.c - a worker for tests/system that ends well without weft_finalize.
 *
 *     unfinished one | all | waited  return | exit | _exit
 *
 * After an all_reduce the highest rank ends so, or all do; with "waited" the others call another all_reduce and exit with 3 when it fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/weft.h>

static float values[1000];

static enum weft_status reduce(struct weft_session *session)
{
    struct weft_request request = {{0}};
    enum weft_status status = weft_all_reduce(session, values, values, 1000, WEFT_F32, WEFT_MAX, &request);
    return status < 0 ? status : weft_wait(&request, 0);
}

int main(int argc, char **argv)
{
    struct weft_session *session;
    if (argc < 3 || weft_init(NULL, &session) < 0 || reduce(session) < 0) return 2;
    if (strcmp(argv[1], "all") == 0 || weft_rank(session) == weft_ranks(session) - 1) {
        if (strcmp(argv[2], "exit") == 0) exit(0);
        if (strcmp(argv[2], "_exit") == 0) _exit(0);
        return 0;
    }
    if (strcmp(argv[1], "waited") == 0 && reduce(session) < 0) {
        fprintf(stderr, "failed: %s\n", weft_error_text(session));
        return 3;
    }
    weft_finalize(session);
    return 0;
}
