/* bundle.c - see bundle.h. A file is read whole before it is cut, so that no part of a secret remains at the
 * cut. */
#include "tools/support/bundle.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

#define FILE_BYTES_MAX ((size_t)64 << 20)
#define SECRET_BYTES_MIN 4u
#define FOLDER "weft-support"
#define VARIABLE "WEFT_SECRET="

bool bundle_open(struct bundle *bundle)
{
    const char *parent = getenv("TMPDIR");
    char inner[600];
    *bundle = (struct bundle){.secret_count = 0};
    snprintf(bundle->folder, sizeof bundle->folder, "%s/weft-support-XXXXXX",
             parent && parent[0] && strlen(parent) < 400 ? parent : "/tmp");
    if (!mkdtemp(bundle->folder)) {
        bundle->folder[0] = 0;
        return false;
    }
    snprintf(inner, sizeof inner, "%s/" FOLDER, bundle->folder);
    return mkdir(inner, 0700) == 0;
}

void bundle_close(struct bundle *bundle)
{
    char path[1200], inner[600];
    for (unsigned i = 0; i < bundle->secret_count; i++) free(bundle->secrets[i]);
    bundle->secret_count = 0;
    if (!bundle->folder[0]) return;
    snprintf(inner, sizeof inner, "%s/" FOLDER, bundle->folder);
    DIR *folder = opendir(inner);
    for (const struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", inner, entry->d_name);
        if (entry->d_name[0] != '.') unlink(path);
    }
    if (folder) closedir(folder);
    rmdir(inner);
    rmdir(bundle->folder);
}

/* ---- secrets ---- */

void bundle_add_secret(struct bundle *bundle, const char *secret)
{
    if (!secret || strlen(secret) < SECRET_BYTES_MIN || bundle->secret_count == BUNDLE_SECRETS_MAX) return;
    char *copy = strdup(secret);
    if (copy) bundle->secrets[bundle->secret_count++] = copy;
}

/* Bytes from text on that are a secret; 0: none. */
static size_t secret_at(const struct bundle *bundle, const char *text, size_t left)
{
    for (unsigned i = 0; i < bundle->secret_count; i++) {
        const size_t bytes = strlen(bundle->secrets[i]);
        if (bytes <= left && memcmp(text, bundle->secrets[i], bytes) == 0) return bytes;
    }
    return 0;
}

static size_t value_bytes(const char *text, size_t left)
{
    size_t bytes = 0;
    while (bytes < left && text[bytes] && !strchr(" \t\n\r\"'", text[bytes])) bytes++;
    return bytes;
}

/* A copy without secrets: owned; NULL: no memory. Each byte becomes at most one BUNDLE_REMOVED. */
static char *without_secrets(const struct bundle *bundle, const char *text, size_t bytes, size_t *bytes_out)
{
    char *copy = NULL;
    FILE *out = open_memstream(&copy, bytes_out);
    if (!out) return NULL;
    for (size_t at = 0; at < bytes;) {
        size_t skipped = secret_at(bundle, text + at, bytes - at), kept = 0;
        if (skipped == 0 && bytes - at >= strlen(VARIABLE) &&
            memcmp(text + at, VARIABLE, strlen(VARIABLE)) == 0) {
            kept = strlen(VARIABLE);
            skipped = value_bytes(text + at + kept, bytes - at - kept);
        } else if (skipped == 0) {
            kept = 1;
        }
        fwrite(text + at, 1, kept, out);
        if (skipped > 0) fputs(BUNDLE_REMOVED, out);
        at += kept + skipped;
    }
    if (fclose(out) == 0) return copy;
    free(copy);
    return NULL;
}

/* ---- files ---- */

static FILE *create(const struct bundle *bundle, const char *name)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/" FOLDER "/%s", bundle->folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? NULL : fdopen(fd, "w");
}

bool bundle_add(struct bundle *bundle, const char *name, const char *text, size_t bytes, size_t bytes_max)
{
    size_t left;
    char *copy = without_secrets(bundle, text, bytes, &left);
    if (!copy) return false;
    const size_t cut = left > bytes_max ? left - bytes_max : 0;
    FILE *file = create(bundle, name);
    bool written = file && fwrite(copy + cut, 1, left - cut, file) == left - cut;
    if (file && fclose(file) != 0) written = false;
    free(copy);
    return written;
}

/* The content of an open file, which is closed: owned; NULL: errno has the reason. */
static char *read_all(FILE *file, size_t *bytes_out)
{
    char *text = NULL, block[65536];
    FILE *copy = open_memstream(&text, bytes_out);
    size_t got, total = 0;
    while (copy && (got = fread(block, 1, sizeof block, file)) > 0 && (total += got) <= FILE_BYTES_MAX)
        fwrite(block, 1, got, copy);
    if (copy) fclose(copy);
    fclose(file);
    if (total <= FILE_BYTES_MAX) return text;
    free(text);
    errno = EFBIG;
    return NULL;
}

bool bundle_add_file(struct bundle *bundle, const char *name, const char *path, size_t bytes_max)
{
    size_t bytes;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        errno = EINVAL;
        return false;
    }
    FILE *file = fdopen(fd, "r");
    char *text = file ? read_all(file, &bytes) : NULL;
    const bool added = text && bundle_add(bundle, name, text, bytes, bytes_max);
    free(text);
    return added;
}

/* ---- programs ---- */

/* Starts a program with `output` as standard output and error. -1: errno has the reason. */
static pid_t start(const char *const words[], int output)
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    int input = open("/dev/null", O_RDONLY);
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    setpgid(0, 0); /* its children end with it */
    execvp(words[0], (char *const *)words);
    _exit(127);
}

/* Waits for the end. The status of waitpid, or -1 after `seconds`, when it is killed. */
static int finish(pid_t pid, unsigned seconds)
{
    int status;
    for (unsigned waited_ms = 0; waited_ms < seconds * 1000; waited_ms += 20) {
        if (waitpid(pid, &status, WNOHANG) == pid) return status;
        usleep(20000);
    }
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

bool bundle_add_output(struct bundle *bundle, const char *name, const char *const words[], unsigned seconds)
{
    FILE *file = tmpfile();
    size_t bytes;
    if (!file) return false;
    pid_t pid = start(words, fileno(file));
    if (pid < 0) {
        fclose(file);
        return false;
    }
    const int status = finish(pid, seconds);
    fseek(file, 0, SEEK_END);
    if (status == -1) fprintf(file, "\n(not ended after %u s: killed)\n", seconds);
    else if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        fprintf(file, "\n(exit status %d)\n", WEXITSTATUS(status));
    else if (WIFSIGNALED(status)) fprintf(file, "\n(ended by signal %d)\n", WTERMSIG(status));
    rewind(file);
    char *text = read_all(file, &bytes);
    const bool added = text && bundle_add(bundle, name, text, bytes, FILE_BYTES_MAX);
    free(text);
    return added;
}

bool bundle_pack(const struct bundle *bundle, const char *path)
{
    const char *const words[] = {"tar", "--create",    "--gzip",       "--force-local", "--file",
                                 path,  "--directory", bundle->folder, FOLDER,          NULL};
    struct stat info;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        fprintf(stderr, "weft support: cannot write %s: %s\n", path, strerror(errno));
        return false;
    }
    const bool is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode); /* a device stays after a failure */
    close(fd);
    pid_t pid = start(words, STDERR_FILENO);
    const int status = pid < 0 ? -1 : finish(pid, 300);
    if (status == 0) return true;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        fprintf(stderr, "weft support: cannot pack %s: the program tar is not installed\n", path);
    else fprintf(stderr, "weft support: cannot pack %s: tar failed\n", path);
    if (is_file) unlink(path);
    return false;
}
