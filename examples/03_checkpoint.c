/* 03_checkpoint.c - a job that is stopped and continued from a checkpoint, bit for bit.
 *
 *     weft run -s 2 -n 2 -- build/examples/03_checkpoint FOLDER 20       trains 20 steps, saves, ends
 *     weft run -s 1 -n 2 -- build/examples/03_checkpoint FOLDER 20       20 more steps, through one shard
 *
 * A checkpoint has three parts: the weights; the state of each tensor (optimiser arrays, residual of a shard,
 * step), saved by one rank; the residual of each tensor, saved by every rank. After loading, weft_step_next
 * returns the next step.
 *
 * File names contain the step. The file `latest` names the step that counts. Rank 0 renames it into place
 * after all ranks have written their files. A job that is killed at any moment leaves all files of one step.
 * (After a power loss this needs fsync too.) */
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

/* Step of a checkpoint, and number of ranks that saved it; step 0: none. */
struct checkpoint {
    uint64_t step, ranks;
};

static const char *path_of(char path[1000], const char *folder, const char *name, uint64_t step,
                           uint32_t rank)
{
    snprintf(path, 1000, "%s/%s-%llu-%u", folder, name, (unsigned long long)step, rank);
    return path;
}

static bool file_failed(const char *what, const char *path)
{
    fprintf(stderr, "cannot %s %s: %s\n", what, path, strerror(errno));
    return false;
}

static bool write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    if (!file) return file_failed("make", path);
    bool whole = fwrite(data, 1, bytes, file) == bytes;
    whole &= fclose(file) == 0; /* fclose writes the last bytes */
    return whole || file_failed("write", path);
}

/* Reads the file into *data_out, which the caller frees; NULL: no such file. */
static bool read_file(const char *path, void **data_out, size_t *bytes_out)
{
    enum { MOST = 1 << 20 };
    FILE *file = fopen(path, "rb");
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

static bool meet(struct weft_session *session)
{
    struct weft_request request = {{0}};
    return (weft_barrier(session, &request) >= 0 && weft_wait(&request, 0) >= 0) ||
           failed(session, "the other ranks' files");
}

/* Every rank writes its residual; rank 0 writes the rest. */
static bool write_all(struct weft_session *session, struct weft_tensor *tensor, const float *weights,
                      const char *folder, uint64_t step, uint32_t rank)
{
    char path[1000];
    size_t bytes = weft_residual_bytes(tensor), state_bytes = weft_state_bytes(tensor);
    void *residual = malloc(bytes), *state = malloc(state_bytes);
    bool saved = (residual && state) || file_failed("save into", folder);
    if (saved && weft_residual_save(tensor, residual, bytes) < 0) saved = failed(session, "saving");
    saved = saved && write_file(path_of(path, folder, "residual", step, rank), residual, bytes);
    if (saved && rank == 0) {
        if (weft_state_save(tensor, state, state_bytes) < 0) saved = failed(session, "saving");
        saved = saved && write_file(path_of(path, folder, "state", step, 0), state, state_bytes) &&
                write_file(path_of(path, folder, "weights", step, 0), weights, COUNT * sizeof *weights);
    }
    free(residual);
    free(state);
    return saved;
}

/* The new files count from the rename on. */
static bool make_latest(const char *folder, const struct checkpoint *checkpoint)
{
    char path[1000], new_path[1000];
    snprintf(path, sizeof path, "%s/latest", folder);
    snprintf(new_path, sizeof new_path, "%s/new-latest", folder);
    return write_file(new_path, checkpoint, sizeof *checkpoint) &&
           (rename(new_path, path) == 0 || file_failed("rename", new_path));
}

/* before: the checkpoint that the job started from; it is removed. */
static bool save(struct weft_session *session, struct weft_tensor *tensor, const float *weights,
                 const char *folder, const struct checkpoint *before)
{
    static const char *const names[] = {"residual", "state", "weights"};
    uint32_t rank = weft_rank(session);
    struct checkpoint now = {.step = weft_step_next(session) - 1, .ranks = weft_ranks(session)};
    char path[1000];
    if (!write_all(session, tensor, weights, folder, now.step, rank) || !meet(session)) return false;
    if (rank == 0 && !make_latest(folder, &now)) return false;
    if (!meet(session)) return false; /* all ranks use the new files */
    for (uint64_t r = rank; before->step > 0 && r < before->ranks; r += now.ranks)
        for (int i = 0; i < (r == 0 ? 3 : 1); i++)
            remove(path_of(path, folder, names[i], before->step, (uint32_t)r));
    return true;
}

/* Rank 0 chooses the checkpoint for all ranks. */
static bool find(struct weft_session *session, const char *folder, struct checkpoint *found)
{
    char path[1000];
    struct weft_request request = {{0}};
    void *data = NULL;
    size_t bytes = 0;
    memset(found, 0, sizeof *found);
    snprintf(path, sizeof path, "%s/latest", folder);
    if (weft_rank(session) == 0 && !read_file(path, &data, &bytes)) return false;
    if (data && bytes == sizeof *found) memcpy(found, data, bytes);
    bool whole = !data || found->step > 0;
    free(data);
    if (!whole) return fprintf(stderr, "taking up the checkpoint: %s is damaged\n", path), false;
    return (weft_broadcast(session, found, 2, WEFT_U64, 0, &request) >= 0 && weft_wait(&request, 0) >= 0) ||
           failed(session, "taking up the checkpoint");
}

static bool load(struct weft_session *session, struct weft_tensor *tensor, float *weights, const char *folder,
                 struct checkpoint *from)
{
    char path[1000];
    uint32_t rank = weft_rank(session);
    size_t residual_bytes = 0, state_bytes = 0, weights_bytes = 0;
    void *residual = NULL, *state = NULL, *saved = NULL;
    for (int i = 0; i < COUNT; i++) weights[i] = 1;
    if (!find(session, folder, from)) return false;
    bool there = from->step > 0, good = true;
    if (there)
        good = read_file(path_of(path, folder, "residual", from->step, rank), &residual, &residual_bytes) &&
               (rank != 0 ||
                (read_file(path_of(path, folder, "state", from->step, 0), &state, &state_bytes) &&
                 read_file(path_of(path, folder, "weights", from->step, 0), &saved, &weights_bytes)));
    if (there && good &&
        ((!residual && rank < from->ranks) ||
         (rank == 0 && (!state || weights_bytes != COUNT * sizeof *weights)))) {
        fprintf(stderr, "taking up the checkpoint: files of step %llu in %s are missing, or cut\n",
                (unsigned long long)from->step, folder);
        good = false;
    }
    if (good && saved) memcpy(weights, saved, weights_bytes);
    if (good && (weft_tensor_init(tensor, weights) < 0 ||
                 (residual && weft_residual_load(tensor, residual, residual_bytes) < 0) ||
                 (there && weft_state_load(tensor, state, state_bytes) < 0)))
        good = failed(session, "taking up the checkpoint");
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

    struct checkpoint from;
    if (!load(session, tensor, weights, folder, &from)) return false;
    uint64_t first = weft_step_next(session), last = first + steps - 1;
    for (uint64_t step = first; step <= last; step++) {
        if (weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.05f, .weight = 1}) < 0)
            return failed(session, "step");
        for (int i = 0; i < COUNT; i++)
            grad[i] = weights[i] - (float)((i * 7 + (int)step * 3 + (int)rank) % 11) / 10;
        struct weft_request request = {{0}};
        if (weft_push_pull(tensor, grad, weights, &request) < 0) return failed(session, "push_pull");
        if (weft_step_end(session) < 0) return failed(session, "step"); /* waits for the request */
    }
    if (!save(session, tensor, weights, folder, &from)) return false;
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
