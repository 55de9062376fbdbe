/* outlived.c - a worker for tests/system. Its child survives it and holds copies of its descriptors.
 *
 *     outlived fork | exec      rank 1 starts a child, which may execute a program, and kills itself.
 *                               The other ranks wait in an all_reduce and print
 *                               "ended STATUS after MS ms: SENTENCE"
 *     outlived descriptors      every rank lists the descriptors that an executed child inherits, before
 *                               weft_init and after operations. It prints "descriptors BEFORE AFTER", then
 *                               each new descriptor */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/weft.h>

#include "now_ms.h"

enum { COUNT = 100000, CHILD_SECONDS = 40 };

static float values[COUNT];

static enum weft_status reduce(struct weft_session *session)
{
    struct weft_request request = {{0}};
    enum weft_status status = weft_all_reduce(session, values, values, COUNT, WEFT_F32, WEFT_MAX, &request);
    return status < 0 ? status : weft_wait(&request, 0);
}

/* The child prints what it has open beyond the standard three; the parent counts the lines. */
static int list_child(const char *self, const char *label)
{
    int out[2], lines = 0, byte;
    if (pipe(out) != 0) exit(1);
    const pid_t child = fork();
    if (child == 0) {
        dup2(out[1], 1);
        close(out[0]);
        close(out[1]);
        execl(self, self, "list", (char *)NULL);
        _exit(1);
    }
    close(out[1]);
    FILE *file = fdopen(out[0], "r");
    while ((byte = fgetc(file)) != EOF) {
        lines += byte == '\n';
        if (label) fputc(byte, stderr);
    }
    fclose(file);
    waitpid(child, NULL, 0);
    return lines;
}

static int list(void)
{
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        char target[256] = "";
        const int fd = atoi(entry->d_name);
        if (entry->d_name[0] == '.' || fd <= 2 || fd == dirfd(folder)) continue;
        char path[300];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        (void)!readlink(path, target, sizeof target - 1);
        printf("open in the child: %d %s\n", fd, target);
    }
    return 0;
}

static void die_with_a_child(bool executes)
{
    if (fork() == 0) {
        setsid();
        if (executes) execlp("sleep", "sleep", "40", (char *)NULL);
        sleep(CHILD_SECONDS);
        _exit(0);
    }
    usleep(300000);
    kill(getpid(), SIGKILL);
}

int main(int argc, char **argv)
{
    struct weft_session *session;
    if (argc == 2 && strcmp(argv[1], "list") == 0) return list();
    const bool descriptors = argc == 2 && strcmp(argv[1], "descriptors") == 0;
    const int before = descriptors ? list_child(argv[0], NULL) : 0;
    if (argc != 2 || weft_init(NULL, &session) < 0) return fprintf(stderr, "%s\n", weft_error_text(NULL)), 2;
    if (reduce(session) < 0) return fprintf(stderr, "%s\n", weft_error_text(session)), 2;
    if (descriptors) {
        printf("descriptors %d %d\n", before, list_child(argv[0], "after"));
        return weft_finalize(session) < 0;
    }
    if (weft_rank(session) == 1) die_with_a_child(strcmp(argv[1], "exec") == 0);
    const uint64_t began_ms = now_ms();
    enum weft_status status = reduce(session);
    printf("ended %s after %llu ms: %s\n", weft_status_name(status),
           (unsigned long long)(now_ms() - began_ms), weft_error_text(session));
    weft_finalize(session);
    return 0;
}
