/* closed_descriptors.c - a worker that destroys descriptors it does not own, then waits and leaves. For
 * tests/system.
 *
 *     closed_descriptors close|null|shuffle all|sockets|epolls|events RANK|-1 [wait]
 *
 * close: closes them; null: replaces them by /dev/null; shuffle: replaces them by a socket pair that stays
 * silent. The rank named, or every rank, destroys the descriptors from 3 on of the kind named, after a
 * first operation. wait: it starts another operation before, and waits for it after. Then weft_finalize.
 * Prints "rank R: wait STATUS finalize STATUS after MS ms". Exits with 0 if weft_finalize returned; the
 * test checks the rest. */
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <weft/weft.h>

enum {
    DESCRIPTORS = 1024,
    COUNT = 100000,
    REST_MS = 300 /* the engine sleeps: UCX ends a process that uses a closed socket */
};

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Whether the descriptor is open and of the kind. */
static bool is_kind(int fd, const char *kind)
{
    static const char *const kinds[][2] = {
        {"sockets", "socket:"}, {"epolls", "anon_inode:[eventpoll]"}, {"events", "anon_inode:[eventfd]"}};
    char path[64], target[256] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, target, sizeof target - 1) < 0) return false;
    if (strcmp(kind, "all") == 0) return true;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kind, kinds[i][0]) == 0) return strncmp(target, kinds[i][1], strlen(kinds[i][1])) == 0;
    return false;
}

static void destroy(const char *how, const char *kind)
{
    int pair[2] = {-1, -1}, null = open("/dev/null", O_RDWR);
    bool chosen[DESCRIPTORS];
    if (null < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) exit(2);
    for (int fd = 3; fd < DESCRIPTORS; fd++)
        chosen[fd] = fd != null && fd != pair[0] && fd != pair[1] && is_kind(fd, kind);
    for (int fd = 3; fd < DESCRIPTORS; fd++) {
        if (!chosen[fd]) continue;
        if (strcmp(how, "close") == 0) close(fd);
        else dup2(strcmp(how, "null") == 0 ? null : pair[0], fd);
    }
}

int main(int argc, char **argv)
{
    struct weft_session *session = NULL;
    struct weft_request first = {{0}}, second = {{0}};
    if (argc < 4) return 2;
    const bool waits = argc > 4;
    if (weft_init(NULL, &session) < 0) return fprintf(stderr, "%s\n", weft_error_text(NULL)), 2;
    const uint32_t rank = weft_rank(session);
    const bool destroys = atoi(argv[3]) < 0 || (uint32_t)atoi(argv[3]) == rank;
    float *values = weft_alloc(session, COUNT * sizeof(float));
    if (!values) return 2;
    memset(values, 0, COUNT * sizeof(float));
    int waited = weft_all_reduce(session, values, values, COUNT, WEFT_F32, WEFT_SUM, &first);
    if (waited >= 0) waited = weft_wait(&first, 0); /* fails if the other rank was faster */
    (void)poll(NULL, 0, REST_MS);
    if (destroys) destroy(argv[1], argv[2]);
    double wait_ms = now_ms();
    if (waits && waited >= 0) {
        waited = weft_all_reduce(session, values, values, COUNT, WEFT_F32, WEFT_SUM, &second);
        if (waited >= 0) waited = weft_wait(&second, 0);
        if (waited < 0) fprintf(stderr, "rank %u: weft_wait: %s\n", rank, weft_error_text(session));
    }
    double began_ms = now_ms();
    int left = weft_finalize(session);
    printf("rank %u: wait %d after %.0f ms, finalize %d after %.0f ms\n", rank, waited, began_ms - wait_ms,
           left, now_ms() - began_ms);
    return 0;
}
