/* run_process.c - one child process of `weft run`.
 *
 * A child leads its own process group: a signal to the group reaches what the child has started, and Ctrl-C
 * reaches the child only through this process. Its standard input is /dev/null. The kernel kills it when this
 * process dies (PR_SET_PDEATHSIG). A close-on-exec pipe reports a failed exec; an empty pipe means
 * success. */
#include "tools/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define TAIL_BYTES 4096

/* Runs in the child after fork; never returns. */
static _Noreturn void exec_child(char *const argv[], const char *const environment[],
                                 const struct run_cpus *cpus, int log_fd, int output_fd, int report_fd,
                                 pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127); /* the parent died before PR_SET_PDEATHSIG was set */
    int null_fd = open("/dev/null", O_RDONLY);
    bool redirected = null_fd >= 0 && dup2(null_fd, 0) >= 0 &&
                      dup2(output_fd >= 0 ? output_fd : log_fd, 1) >= 0 && dup2(log_fd, 2) >= 0;
    for (int i = 0; environment[i]; i++) putenv((char *)environment[i]);
    unsetenv("WEFT_SECRET"); /* WEFT_SECRET_FILE names the secret of this job */
    unsetenv("WEFT_RANKS");  /* of another job: this command coordinates */
    if (redirected && (!cpus || run_bind_apply(cpus))) execvp(argv[0], argv);
    int error = errno;
    (void)!write(report_fd, &error, sizeof error);
    _exit(127);
}

static bool start_failed(struct run_process *process, const char *what, const char *subject)
{
    fprintf(stderr, "weft run: cannot %s %s for %s: %s\n", what, subject, process->name, strerror(errno));
    return false;
}

bool run_process_start(struct run_process *process, char *const argv[], const char *const environment[],
                       const struct run_cpus *cpus, bool copy_output)
{
    int report[2] = {-1, -1}, output[2] = {-1, -1};
    process->output_fd = -1;
    process->log_fd = open(process->log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (process->log_fd < 0) return start_failed(process, "write the log", process->log_path);
    if (pipe2(report, O_CLOEXEC) != 0 || (copy_output && pipe2(output, O_CLOEXEC) != 0))
        return start_failed(process, "make", "a pipe");
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) exec_child(argv, environment, cpus, process->log_fd, output[1], report[1], parent);
    int saved = errno;
    close(report[1]);
    if (output[1] >= 0) close(output[1]);
    if (!copy_output || pid < 0) {
        close(process->log_fd);
        process->log_fd = -1;
    }
    int error = 0;
    ssize_t report_bytes = pid > 0 ? read(report[0], &error, sizeof error) : 0;
    close(report[0]);
    if (pid < 0) {
        errno = saved;
        return start_failed(process, "fork", argv[0]);
    }
    process->pid = pid;
    process->output_fd = output[0];
    if (output[0] >= 0) fcntl(output[0], F_SETFL, O_NONBLOCK);
    if (report_bytes != sizeof error) return true;
    waitpid(pid, &process->wait_status, 0);
    process->ended = true;
    errno = error;
    return start_failed(process, "start", argv[0]);
}

void run_process_copy(struct run_process *process)
{
    char data[65536];
    while (process->output_fd >= 0) {
        ssize_t bytes = read(process->output_fd, data, sizeof data);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0 && errno == EAGAIN) return;
        if (bytes <= 0) {
            run_process_close(process);
            return;
        }
        /* on a full disk the log loses lines and the job continues */
        (void)!write(process->log_fd, data, (size_t)bytes);
        bool written = fwrite(data, 1, (size_t)bytes, stdout) == (size_t)bytes && fflush(stdout) == 0;
        if (!written && !process->output_error) process->output_error = errno;
    }
}

void run_process_close(struct run_process *process)
{
    if (process->output_fd >= 0) close(process->output_fd);
    if (process->log_fd >= 0) close(process->log_fd);
    process->output_fd = process->log_fd = -1;
}

void run_process_signal(const struct run_process *process, int signal_number)
{
    if (process->pid <= 0) return;
    /* The group may outlive its leader. An error means that the group has ended. */
    if (kill(-process->pid, signal_number) != 0 && !process->ended) kill(process->pid, signal_number);
}

bool run_process_has_failed(const struct run_process *process)
{
    return process->ended && !(WIFEXITED(process->wait_status) && WEXITSTATUS(process->wait_status) == 0);
}

void run_process_describe(const struct run_process *process, char *out, size_t out_bytes)
{
    if (!process->ended) snprintf(out, out_bytes, "still runs");
    else if (WIFSIGNALED(process->wait_status))
        snprintf(out, out_bytes, "was killed by signal %d (%s)", WTERMSIG(process->wait_status),
                 strsignal(WTERMSIG(process->wait_status)));
    else snprintf(out, out_bytes, "exited with status %d", WEXITSTATUS(process->wait_status));
}

void run_process_print_tail(const struct run_process *process, int lines)
{
    char data[TAIL_BYTES + 1];
    int fd = open(process->log_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    off_t size = lseek(fd, 0, SEEK_END);
    ssize_t bytes = pread(fd, data, TAIL_BYTES, size > TAIL_BYTES ? size - TAIL_BYTES : 0);
    close(fd);
    while (bytes > 0 && data[bytes - 1] == '\n') bytes--;
    if (bytes <= 0) {
        fprintf(stderr, "    (its log is empty)\n");
        return;
    }
    data[bytes] = 0;
    char *start = data + bytes;
    for (int seen = 0; start > data; start--)
        if (start[-1] == '\n' && ++seen == lines) break;
    for (char *line = start; line;) {
        char *next = strchr(line, '\n');
        if (next) *next++ = 0;
        fprintf(stderr, "    %s\n", line);
        line = next;
    }
}
