/* unfinished.c - a worker for tests/system that ends well without weft_finalize.
 *
 *     unfinished one | all | waited  return | exit | _exit | slow | late
 *
 * slow: while connections are still made; and a handler of exit() that is older than the session takes 200
 * ms. late: such a handler calls weft_finalize. After an all_reduce the highest rank ends so, or all do;
 * with "waited" the others call another all_reduce and exit with 3 when it fails. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/weft.h>

static float values[1000];

static struct weft_session *session;
static bool finalises;

static void end_program(void)
{
    if (finalises) weft_finalize(session);
    else usleep(200000);
}

static enum weft_status reduce(void)
{
    struct weft_request request = {{0}};
    enum weft_status status = weft_all_reduce(session, values, values, 1000, WEFT_F32, WEFT_MAX, &request);
    return status < 0 ? status : weft_wait(&request, 0);
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    finalises = strcmp(argv[2], "late") == 0;
    const bool slow = strcmp(argv[2], "slow") == 0;
    if (finalises || slow) atexit(end_program);
    if (weft_init(NULL, &session) < 0 || (!slow && reduce() < 0)) return 2;
    if (strcmp(argv[1], "all") == 0 || weft_rank(session) == weft_ranks(session) - 1) {
        if (strcmp(argv[2], "exit") == 0) exit(0);
        if (strcmp(argv[2], "_exit") == 0) _exit(0);
        return 0;
    }
    if (strcmp(argv[1], "waited") == 0 && reduce() < 0) {
        fprintf(stderr, "failed: %s\n", weft_error_text(session));
        return 3;
    }
    weft_finalize(session);
    return 0;
}
