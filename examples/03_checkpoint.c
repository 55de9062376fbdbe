/* 03_checkpoint.c - a job that can be stopped and begun again, as if nothing had been.
 *
 *     weft run -s 2 -n 2 -- build/examples/03_checkpoint FOLDER 20       trains 20 steps, saves, ends
 *     weft run -s 1 -n 2 -- build/examples/03_checkpoint FOLDER 20       20 more, through one shard this time
 *
 * To notice: three things make a checkpoint. The weights, which the trainer has anyway; the job's state of
 * each tensor (adam's moments, what a shard with topk:global=1 still owes, the step), saved once, by any
 * rank; what the codec of each rank remembers, saved by each. After loading, weft_step_next says where to
 * go on. Files get their names when all ranks have written theirs: who stops before keeps the old checkpoint.
 * (A machine that loses power asks for fsync, too.) */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

enum { ROWS = 64, COLS = 32, COUNT = ROWS * COLS };

static bool failed(struct weft_session *session, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_error_text(session));
    return false;
}

/* ---- files ---- */

static const char *path_of(char path[1000], const char *folder, const char *name, uint32_t rank)
{
    snprintf(path, 1000, "%s/%s-%u", folder, name, rank);
    return path;
}

static bool file_failed(const char *what, const char *path)
{
    fprintf(stderr, "cannot %s %s: %s\n", what, path, strerror(errno));
    return false;
}

static bool write_file(const char *folder, const char *name, uint32_t rank, const void *data, size_t bytes)
{
    char path[1000];
    FILE *file = fopen(path_of(path, folder, name, rank), "wb");
    if (!file) return file_failed("make", path);
    bool whole = fwrite(data, 1, bytes, file) == bytes;
    whole &= fclose(file) == 0; /* its last bytes are written here */
    return whole || file_failed("write", path);
}

static bool rename_file(const char *folder, const char *from, const char *to, uint32_t rank)
{
    char path[1000], new_path[1000];
    path_of(new_path, folder, to, rank);
    return rename(path_of(path, folder, from, rank), new_path) == 0 || file_failed("rename", path);
}

/* The file's bytes into *data_out, to be freed; NULL: there is none. */
static bool read_file(const char *folder, const char *name, uint32_t rank, void **data_out, size_t *bytes_out)
{
    enum { MOST = 1 << 20 };
    char path[1000];
    FILE *file = fopen(path_of(path, folder, name, rank), "rb");
    *data_out = NULL;
    *bytes_out = 0;
    if (!file) return errno == ENOENT || file_failed("open", path);
    *data_out = malloc(MOST);
    if (*data_out) *bytes_out = fread(*data_out, 1, MOST, file);
    bool read = *data_out && !ferror(file);
    fclose(file);
    return read || file_failed("read", path);
}

/* ---- the checkpoint ---- */

/* Every rank its own residual; rank 0 the rest. */
static bool write_all(struct weft_session *session, struct weft_tensor *tensor, const float *weights,
                      const char *folder, uint32_t rank)
{
    size_t bytes = weft_residual_bytes(tensor), state_bytes = weft_state_bytes(tensor);
    void *residual = malloc(bytes), *state = malloc(state_bytes);
    bool saved = (residual && state) || file_failed("save into", folder);
    if (saved && weft_residual_save(tensor, residual, bytes) < 0) saved = failed(session, "saving");
    saved = saved && write_file(folder, "new-residual", rank, residual, bytes);
    if (saved && rank == 0) {
        if (weft_state_save(tensor, state, state_bytes) < 0) saved = failed(session, "saving");
        saved = saved && write_file(folder, "new-state", 0, state, state_bytes) &&
                write_file(folder, "new-weights", 0, weights, COUNT * sizeof *weights);
    }
    free(residual);
    free(state);
    return saved;
}

static bool save(struct weft_session *session, struct weft_tensor *tensor, const float *weights,
                 const char *folder, uint32_t rank)
{
    struct weft_request request = {{0}};
    if (!write_all(session, tensor, weights, folder, rank)) return false;
    if (weft_barrier(session, &request) < 0 || weft_wait(&request, 0) < 0)
        return failed(session, "the other ranks' files");
    return rename_file(folder, "new-residual", "residual", rank) &&
           (rank != 0 || (rename_file(folder, "new-state", "state", 0) &&
                          rename_file(folder, "new-weights", "weights", 0)));
}

/* For all but the residual rank 0's files count, and whether it has any. */
static bool take_up(struct weft_session *session, struct weft_tensor *tensor, float *weights,
                    const void *residual, size_t residual_bytes, const void *state, size_t state_bytes)
{
    int64_t there = state != NULL;
    struct weft_request request = {{0}};
    if (weft_broadcast(session, &there, 1, WEFT_I64, 0, &request) < 0 || weft_wait(&request, 0) < 0 ||
        weft_tensor_init(tensor, weights) < 0 ||
        (residual && weft_residual_load(tensor, residual, residual_bytes) < 0) ||
        (there && weft_state_load(tensor, state, state_bytes) < 0))
        return failed(session, "taking up the checkpoint");
    return true;
}

static bool load(struct weft_session *session, struct weft_tensor *tensor, float *weights, const char *folder,
                 uint32_t rank)
{
    size_t residual_bytes = 0, state_bytes = 0, weights_bytes = 0;
    void *residual = NULL, *state = NULL, *saved = NULL;
    bool good = read_file(folder, "residual", rank, &residual, &residual_bytes) &&
                (rank != 0 || (read_file(folder, "state", 0, &state, &state_bytes) &&
                               read_file(folder, "weights", 0, &saved, &weights_bytes)));
    for (int i = 0; i < COUNT; i++) weights[i] = 1;
    if (good && (state || saved) && (!state || weights_bytes != COUNT * sizeof *weights)) {
        fprintf(stderr, "taking up the checkpoint: it is not whole, %s/weights-0 has %zu of %zu bytes and "
                "state-0 has %zu\n", folder, weights_bytes, COUNT * sizeof *weights, state_bytes);
        good = false;
    }
    if (good && saved) memcpy(weights, saved, weights_bytes);
    good = good && take_up(session, tensor, weights, residual, residual_bytes, state, state_bytes);
    free(residual);
    free(state);
    free(saved);
    return good;
}

/* ---- the trainer ---- */

static bool train(struct weft_session *session, const char *folder, uint64_t steps)
{
    static float weights[COUNT], grad[COUNT];
    uint32_t rank = weft_rank(session);
    struct weft_tensor_options options;
    weft_tensor_options_init(&options);
    options.name = "weights";
    options.dim_count = 2;
    options.dims[0] = ROWS;
    options.dims[1] = COLS;
    options.optimizer = "adam";
    options.codec = "topk:ratio=0.05,global=1,min_count=0";
    struct weft_tensor *tensor = NULL;
    if (weft_declare(session, &options, &tensor) < 0) return failed(session, "declare");

    if (!load(session, tensor, weights, folder, rank)) return false;
    uint64_t first = weft_step_next(session), last = first + steps - 1;
    for (uint64_t step = first; step <= last; step++) {
        if (weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.05f, .weight = 1}) < 0)
            return failed(session, "step");
        for (int i = 0; i < COUNT; i++)
            grad[i] = weights[i] - (float)((i * 7 + (int)step * 3 + (int)rank) % 11) / 10;
        struct weft_request request = {{0}};
        if (weft_push_pull(tensor, grad, weights, &request) < 0) return failed(session, "push_pull");
        if (weft_step_end(session) < 0) return failed(session, "step"); /* waits for it */
    }
    if (!save(session, tensor, weights, folder, rank)) return false;
    double sum = 0;
    for (int i = 0; i < COUNT; i++) sum += (double)weights[i] * (1 + i % 5);
    if (rank == 0)
        printf("steps %llu to %llu: the weights sum to %.9f\n", (unsigned long long)first,
               (unsigned long long)last, sum);
    return true;
}

int main(int argc, char **argv)
{
    struct weft_session *session = NULL;
    char *end = NULL;
    uint64_t steps = argc == 3 ? strtoull(argv[2], &end, 10) : 0;
    if (steps == 0 || *end) return fprintf(stderr, "usage: 03_checkpoint FOLDER STEPS\n"), 2;
    if (weft_init(NULL, &session) < 0) return failed(NULL, "joining the job"), 1;
    bool good = train(session, argv[1], steps);
    weft_finalize(session);
    return good ? 0 : 1;
}
