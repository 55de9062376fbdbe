/* launched.c - a worker for tests/system that takes its job from the environment of a launcher.
 *
 *     launched WORD...
 *
 *     init      open a session with weft_init            sum    an all_reduce on the newest session
 *     finalize  end the oldest session                   named  the same as init, in a job of its own name
 *     hold      print "held", wait for the end of input  exit   end without weft_finalize
 *     pair      ranks 0 and 1 of the job, each opened by a thread of its own
 *     fork      weft_abort, on a session of its parent, returns WEFT_ERR_FORKED in a child, which outlives
 *               this process until the end of input
 *
 * A failed word prints the sentence of its error and ends the program with status 3. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/weft.h>

enum { SESSIONS_MAX = 8, COUNT = 1000 };

static struct weft_session *sessions[SESSIONS_MAX];
static int first, end; /* of the open sessions */
static float values[COUNT];

static enum weft_status sum(struct weft_session *session)
{
    struct weft_request request = {{0}};
    for (int i = 0; i < COUNT; i++) values[i] = (float)weft_rank(session) + 1;
    enum weft_status status = weft_all_reduce(session, values, values, COUNT, WEFT_F32, WEFT_SUM, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    const float ranks = (float)weft_ranks(session);
    if (status >= 0 && values[COUNT - 1] != ranks * (ranks + 1) / 2) {
        fprintf(stderr, "the sum is %g\n", (double)values[COUNT - 1]);
        exit(4);
    }
    return status;
}

static enum weft_status open_session(const char *job)
{
    struct weft_options options;
    weft_options_init(&options);
    options.job = job;
    return weft_init(&options, &sessions[end++]);
}

static void *open_rank(void *rank)
{
    struct weft_options options;
    weft_options_init(&options);
    options.rank = *(int *)rank;
    return weft_init(&options, &sessions[end + options.rank]) < 0 ? NULL : rank;
}

static enum weft_status open_pair(void)
{
    int ranks[] = {0, 1};
    pthread_t other;
    void *opened = NULL;
    if (pthread_create(&other, NULL, open_rank, &ranks[1]) != 0) return WEFT_ERR_LIMIT;
    const bool has_opened = open_rank(&ranks[0]) != NULL;
    pthread_join(other, &opened);
    end += 2;
    return has_opened && opened ? WEFT_OK : WEFT_ERR_UNREACHABLE;
}

static void hold(void)
{
    char byte;
    puts("held");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
}

static enum weft_status fork_child(void)
{
    const pid_t child = fork();
    if (child < 0) return WEFT_ERR_LIMIT;
    if (child > 0) return WEFT_OK;
    if (weft_abort(sessions[first], "by a child") != WEFT_ERR_FORKED) _exit(5);
    weft_finalize(sessions[first]);
    hold();
    _exit(0);
}

static enum weft_status run(const char *word)
{
    if (strcmp(word, "init") == 0) return open_session(NULL);
    if (strcmp(word, "named") == 0) return open_session("named");
    if (strcmp(word, "pair") == 0) return open_pair();
    if (strcmp(word, "sum") == 0) return sum(sessions[end - 1]);
    if (strcmp(word, "finalize") == 0) return weft_finalize(sessions[first++]);
    if (strcmp(word, "fork") == 0) return fork_child();
    if (strcmp(word, "exit") == 0) exit(0);
    if (strcmp(word, "hold") == 0) return hold(), WEFT_OK;
    return WEFT_ERR_INVALID;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const enum weft_status status = run(argv[i]);
        if (status >= 0) continue;
        fprintf(stderr, "%s: %s: %s\n", argv[i], weft_status_name(status),
                weft_error_text(end > first ? sessions[end - 1] : NULL));
        while (first < end) weft_finalize(sessions[first++]);
        return 3;
    }
    puts("done");
    return 0;
}
