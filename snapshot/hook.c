/* hook.c - copies files of a snapshot to and from another store by a program of the user.
 *
 *     PROGRAM put FILE NAME      PROGRAM get NAME FILE      PROGRAM list PREFIX      PROGRAM delete NAME
 *
 * Exit status 0: done.
 *
 * Up to CALLS_MAX puts run at once. A call that fails or takes longer than CALL_NS is made again, TRIES times
 * in all. Names are those of the files in the folder, with "/". `list` prints one name in each line. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "snapshot/hook.h"

#define CALLS_MAX 4
#define TRIES 3
#define CALL_NS WEFT_SECONDS(300)
#define LIST_BYTES_MAX ((size_t)1 << 20)
#define POLL_MS 5

extern char **environ;

/* A call that may run. */
struct hook_call {
    pid_t pid; /* 0: none */
    uint32_t tries;
    uint64_t until_ns;
    const char *verb;
    char first[SNAPSHOT_PATH_BYTES], second[SNAPSHOT_PATH_BYTES]; /* arguments; second "": none */
};

struct weft_snapshot_hook {
    struct weft_env *env;
    char program[SNAPSHOT_PATH_BYTES];
    struct hook_call calls[CALLS_MAX];
    struct weft_error error;  /* of the first put that has failed */
    atomic_bool is_cancelled; /* calls end at once */
};

enum weft_status weft_snapshot_hook_create(struct weft_env *env, const char *program,
                                           struct weft_snapshot_hook **out, struct weft_error *error)
{
    *out = weft_alloc_zero(env, sizeof **out);
    if (!*out) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the hook of snapshots");
    (*out)->env = env;
    if ((size_t)snprintf((*out)->program, sizeof(*out)->program, "%s", program) < sizeof(*out)->program &&
        access(program, X_OK) == 0)
        return WEFT_OK;
    weft_free_bytes(env, *out);
    *out = NULL;
    return weft_error_set(error, WEFT_ERR_INVALID, "snapshot.hook is no program that can be run: %.300s",
                          program);
}

void weft_snapshot_hook_cancel(struct weft_snapshot_hook *hook)
{
    if (hook) atomic_store(&hook->is_cancelled, true);
}

void weft_snapshot_hook_free(struct weft_snapshot_hook *hook)
{
    if (!hook) return;
    for (int i = 0; i < CALLS_MAX; i++) {
        if (hook->calls[i].pid == 0) continue;
        (void)kill(hook->calls[i].pid, SIGKILL);
        (void)waitpid(hook->calls[i].pid, NULL, 0);
    }
    weft_free_bytes(hook->env, hook);
}

/* ---- one call ---- */

/* Starts the program with no blocked signals; its standard output is out_fd, or /dev/null if that is -1. */
static bool call_start(struct weft_snapshot_hook *hook, struct hook_call *call, int out_fd)
{
    char *words[] = {hook->program, (char *)(uintptr_t)call->verb, call->first,
                     call->second[0] ? call->second : NULL, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    call->tries++;
    call->until_ns = weft_deadline_ns(weft_now_ns(hook->env), CALL_NS);
    if (posix_spawn_file_actions_init(&actions) != 0) return false;
    bool is_started = posix_spawnattr_init(&attributes) == 0;
    if (is_started) {
        is_started =
            posix_spawnattr_setsigmask(&attributes, &none) == 0 &&
            posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK) == 0 &&
            posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0 &&
            (out_fd >= 0 ? posix_spawn_file_actions_adddup2(&actions, out_fd, 1)
                         : posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0)) == 0 &&
            posix_spawn(&call->pid, hook->program, &actions, &attributes, words, environ) == 0;
        (void)posix_spawnattr_destroy(&attributes);
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    if (!is_started) call->pid = 0;
    return is_started;
}

/* WEFT_IN_PROGRESS, WEFT_OK, or WEFT_ERR_IO after the last try, with `error` set. */
static enum weft_status call_poll(struct weft_snapshot_hook *hook, struct hook_call *call, int out_fd,
                                  struct weft_error *error)
{
    int status = 0;
    const pid_t ended = call->pid ? waitpid(call->pid, &status, WNOHANG) : 0;
    const bool is_cancelled = atomic_load(&hook->is_cancelled),
               is_late =
                   call->pid && ended == 0 && (is_cancelled || weft_now_ns(hook->env) >= call->until_ns);
    if (call->pid && ended == 0 && !is_late) return WEFT_IN_PROGRESS;
    if (is_late) {
        (void)kill(call->pid, SIGKILL);
        (void)waitpid(call->pid, &status, 0);
    }
    const bool has_run = call->pid != 0;
    call->pid = 0;
    if (has_run && !is_late && ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) return WEFT_OK;
    if (call->tries < TRIES && !is_cancelled) {
        (void)call_start(hook, call, out_fd);
        return WEFT_IN_PROGRESS;
    }
    return weft_error_set(error, WEFT_ERR_IO, "the hook of snapshots has failed %u times: %.200s %s %.150s",
                          call->tries, hook->program, call->verb, call->first);
}

static enum weft_status call_run(struct weft_snapshot_hook *hook, struct hook_call *call, int out_fd,
                                 struct weft_error *error)
{
    enum weft_status status = WEFT_IN_PROGRESS;
    (void)call_start(hook, call, out_fd);
    while ((status = call_poll(hook, call, out_fd, error)) == WEFT_IN_PROGRESS) (void)poll(NULL, 0, POLL_MS);
    return status;
}

struct weft_env *snapshot_hook_env(const struct weft_snapshot_hook *hook)
{
    return hook->env;
}

enum weft_status snapshot_hook_run(struct weft_snapshot_hook *hook, const char *verb, const char *first,
                                   const char *second, struct weft_error *error)
{
    struct hook_call call = {.verb = verb};
    const int first_bytes = snprintf(call.first, sizeof call.first, "%s", first),
              second_bytes = snprintf(call.second, sizeof call.second, "%s", second);
    if (first_bytes < 0 || second_bytes < 0 || (size_t)first_bytes >= sizeof call.first ||
        (size_t)second_bytes >= sizeof call.second)
        return weft_error_set(error, WEFT_ERR_LIMIT, "a path for the hook is too long: %.100s", first);
    return call_run(hook, &call, -1, error);
}

/* ---- put ---- */

static struct hook_call *free_call(struct weft_snapshot_hook *hook)
{
    for (int i = 0; i < CALLS_MAX; i++)
        if (hook->calls[i].tries == 0) return &hook->calls[i];
    return NULL;
}

/* Polls all puts. Returns how many have not ended. */
static int poll_puts(struct weft_snapshot_hook *hook)
{
    int running = 0;
    for (int i = 0; i < CALLS_MAX; i++) {
        struct hook_call *call = &hook->calls[i];
        if (call->tries == 0) continue;
        if (call_poll(hook, call, -1, &hook->error) == WEFT_IN_PROGRESS) running++;
        else call->tries = 0;
    }
    return running;
}

void weft_snapshot_hook_put(struct weft_snapshot_hook *hook, const char *folder, const char *name)
{
    struct hook_call *call;
    while (!(call = free_call(hook))) {
        if (poll_puts(hook) == CALLS_MAX) (void)poll(NULL, 0, POLL_MS);
    }
    call->verb = "put";
    const int path = snprintf(call->first, sizeof call->first, "%s/%s", folder, name),
              bytes = snprintf(call->second, sizeof call->second, "%s", name);
    if (path < 0 || bytes < 0 || (size_t)path >= sizeof call->first || (size_t)bytes >= sizeof call->second)
        weft_error_set(&hook->error, WEFT_ERR_LIMIT, "a path for the hook is too long: %.100s", name);
    else (void)call_start(hook, call, -1);
}

enum weft_status weft_snapshot_hook_wait(struct weft_snapshot_hook *hook, struct weft_error *error)
{
    while (poll_puts(hook) > 0) (void)poll(NULL, 0, POLL_MS);
    const struct weft_error first = hook->error;
    hook->error = (struct weft_error){0};
    return first.status == WEFT_OK ? WEFT_OK : weft_error_set(error, first.status, "%s", first.text);
}

/* ---- get ---- */

/* The file, written whole by a rename. */
static enum weft_status get(struct weft_snapshot_hook *hook, const char *folder, const char *name,
                            struct weft_error *error)
{
    struct hook_call call = {.verb = "get"};
    char path[SNAPSHOT_PATH_BYTES];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path ||
        (size_t)snprintf(call.first, sizeof call.first, "%s", name) >= sizeof call.first ||
        (size_t)snprintf(call.second, sizeof call.second, "%s" SNAPSHOT_PART_MARK "XXXXXX", path) >=
            sizeof call.second)
        return weft_error_set(error, WEFT_ERR_LIMIT, "a path for the hook is too long: %.100s", name);
    const int fd = mkostemp(call.second, O_CLOEXEC);
    if (fd < 0)
        return weft_error_set(error, WEFT_ERR_IO, "cannot make %.300s: %s", call.second, strerror(errno));
    close(fd);
    enum weft_status status = call_run(hook, &call, -1, error);
    if (status == WEFT_OK && rename(call.second, path) != 0)
        status = weft_error_set(error, WEFT_ERR_IO, "cannot rename %.300s: %s", call.second, strerror(errno));
    if (status < 0) (void)unlink(call.second);
    return status;
}

/* The piece and its bases, as far as the folder lacks them. */
static enum weft_status get_piece(struct weft_snapshot_hook *hook, const char *folder, const char *name,
                                  struct weft_error *error)
{
    char at[WEFT_PIECE_NAME_BYTES];
    snprintf(at, sizeof at, "%s", name);
    for (uint32_t depth = 0; at[0] && depth <= WEFT_PIECE_CHAIN_MAX; depth++) {
        char path[SNAPSHOT_PATH_BYTES], file[WEFT_SNAPSHOT_FILE_BYTES];
        struct weft_piece_ref ref;
        struct weft_piece *piece;
        WEFT_TRY(snapshot_piece_path(folder, at, path, error));
        snprintf(file, sizeof file, "pieces/%.2s", at);
        WEFT_TRY(snapshot_folder_make_inner(folder, file, error));
        weft_snapshot_piece_file(at, file);
        if (access(path, R_OK) != 0) WEFT_TRY(get(hook, folder, file, error));
        WEFT_TRY(snapshot_piece_read(hook->env, folder, at, &piece, &ref, error));
        weft_piece_free(piece);
        snprintf(at, sizeof at, "%s", ref.base);
    }
    return WEFT_OK;
}

static int compare_steps(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Adds a step to (count,) steps. */
static bool add_step(struct weft_env *env, uint64_t step, uint64_t **steps, uint32_t *count)
{
    if ((*count & (*count - 1)) == 0) { /* 0 or a power of two: it is full */
        uint64_t *more = weft_alloc_array(env, *count ? 2 * (size_t)*count : 1, sizeof *more);
        if (!more) return false;
        if (*count > 0) memcpy(more, *steps, *count * sizeof *more);
        weft_free_bytes(env, *steps);
        *steps = more;
    }
    (*steps)[(*count)++] = step;
    return true;
}

enum weft_status snapshot_hook_steps(struct weft_snapshot_hook *hook, uint64_t **steps_out,
                                     uint32_t *count_out, struct weft_error *error)
{
    struct hook_call call = {.verb = "list", .first = "snap-"};
    FILE *file = tmpfile();
    char line[256];
    *steps_out = NULL;
    *count_out = 0;
    if (!file)
        return weft_error_set(error, WEFT_ERR_IO, "cannot make a file for a list: %s", strerror(errno));
    enum weft_status status = call_run(hook, &call, fileno(file), error);
    rewind(file);
    for (size_t bytes = 0; status == WEFT_OK && bytes < LIST_BYTES_MAX && fgets(line, sizeof line, file);
         bytes += strlen(line)) {
        uint64_t step;
        line[strcspn(line, "\r\n")] = 0;
        if (snapshot_manifest_step(line, &step) && !add_step(hook->env, step, steps_out, count_out))
            status = weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a list of snapshots");
    }
    fclose(file);
    if (*count_out > 0) qsort(*steps_out, *count_out, sizeof **steps_out, compare_steps);
    if (status == WEFT_OK) return WEFT_OK;
    weft_free_bytes(hook->env, *steps_out);
    return status;
}

/* The newest step that the store lists. */
static enum weft_status list_newest(struct weft_snapshot_hook *hook, uint64_t *step_out,
                                    struct weft_error *error)
{
    uint64_t *steps;
    uint32_t count;
    WEFT_TRY(snapshot_hook_steps(hook, &steps, &count, error));
    if (count > 0) *step_out = steps[count - 1];
    weft_free_bytes(hook->env, steps);
    return count > 0
               ? WEFT_OK
               : weft_error_set(error, WEFT_ERR_NOT_FOUND, "the hook of snapshots lists no snap-STEP.json");
}

enum weft_status weft_snapshot_hook_fetch(struct weft_snapshot_hook *hook, const char *folder, uint64_t *step,
                                          struct weft_error *error)
{
    char path[SNAPSHOT_PATH_BYTES], name[WEFT_SNAPSHOT_FILE_BYTES];
    struct weft_snapshot snapshot;
    WEFT_TRY(weft_snapshot_folder_make(folder, error));
    if (*step == WEFT_NEVER) WEFT_TRY(list_newest(hook, step, error));
    WEFT_TRY(snapshot_manifest_path(folder, *step, path, error));
    weft_snapshot_manifest_file(*step, name);
    if (access(path, R_OK) != 0) WEFT_TRY(get(hook, folder, name, error));
    WEFT_TRY(weft_snapshot_load(hook->env, folder, *step, &snapshot, error));
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; status == WEFT_OK && i < snapshot.piece_count; i++)
        status = get_piece(hook, folder, snapshot.pieces[i].ref.name, error);
    weft_snapshot_fini(&snapshot);
    return status;
}
