/* process.c - see process.h. */
#include "tests/lib/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/check.h"

#define OUTPUT_POLL_MS 10

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void exec_child(const char *const *argv, const char *const *variables, int output_fd, pid_t parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127); /* the test died before PR_SET_PDEATHSIG was set */
    for (; variables && *variables; variables++) {
        char *copy = strdup(*variables);
        if (!copy) _exit(127);
        if (strchr(copy, '=')) putenv(copy);
        else unsetenv(copy);
    }
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(output_fd, 1) < 0 || dup2(output_fd, 2) < 0) _exit(127);
    execvp(argv[0], (char *const *)argv);
    dprintf(2, "cannot start %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

struct process *process_start(const char *const *argv, const char *const *variables)
{
    struct process *process = calloc(1, sizeof *process);
    assert_non_null(process);
    /* O_APPEND, because the test reads through the same open file. */
    process->output_fd = memfd_create("output", MFD_CLOEXEC);
    assert_true(process->output_fd >= 0);
    assert_int_equal(fcntl(process->output_fd, F_SETFL, O_APPEND), 0);
    pid_t parent = getpid();
    process->pid = fork();
    assert_true(process->pid >= 0);
    if (process->pid == 0) exec_child(argv, variables, process->output_fd, parent);
    setpgid(process->pid, process->pid); /* by parent and child, because either may run first */
    process->pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    assert_true(process->pidfd >= 0);
    return process;
}

static bool wait_with_timeout(struct process *process, int timeout_ms)
{
    struct pollfd watched = {.fd = process->pidfd, .events = POLLIN};
    if (process->ended) return true;
    if (poll(&watched, 1, timeout_ms) <= 0) return false;
    assert_int_equal(waitpid(process->pid, &process->wait_status, 0), process->pid);
    process->ended = true;
    return true;
}

bool process_wait(struct process *process, int timeout_ms)
{
    int64_t until_ms = now_ms() + timeout_ms;
    for (;;) {
        int64_t left_ms = until_ms - now_ms();
        if (wait_with_timeout(process, left_ms > 0 ? (int)left_ms : 0)) return true;
        if (left_ms <= 0) return false;
    }
}

bool process_wait_output(struct process *process, const char *text, int timeout_ms)
{
    int64_t until_ms = now_ms() + timeout_ms;
    for (;;) {
        bool ended = process->ended;
        if (strstr(process_output(process), text)) return true;
        if (ended || now_ms() >= until_ms) return false;
        wait_with_timeout(process, OUTPUT_POLL_MS);
    }
}

const char *process_output(struct process *process)
{
    struct stat info;
    assert_int_equal(fstat(process->output_fd, &info), 0);
    free(process->output);
    process->output = calloc(1, (size_t)info.st_size + 1);
    assert_non_null(process->output);
    ssize_t got = pread(process->output_fd, process->output, (size_t)info.st_size, 0);
    assert_true(got >= 0);
    process->output[got] = '\0';
    return process->output;
}

int process_exit_code(const struct process *process)
{
    assert_true(process->ended);
    if (WIFEXITED(process->wait_status)) return WEXITSTATUS(process->wait_status);
    return 128 + WTERMSIG(process->wait_status);
}

void process_signal(struct process *process, int signal_number)
{
    if (!process->ended) kill(process->pid, signal_number);
}

void process_free(struct process *process)
{
    if (!process) return;
    kill(-process->pid, SIGKILL); /* the group: also processes that the child has started */
    if (!process->ended) waitpid(process->pid, &process->wait_status, 0);
    close(process->pidfd);
    close(process->output_fd);
    free(process->output);
    free(process);
}
