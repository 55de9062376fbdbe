/* checkpoint.c - saves and loads a job between two steps; see trainer.h.
 *
 *     weights-STEP        rank 0: the masters of all parts, f32
 *     state-STEP          rank 0: weft's state of each tensor (AdamW's arrays, the step)
 *     residual-STEP-RANK  each rank: what its codecs have not sent
 *     latest              "STEP RANKS"; renamed into place when all files of the step are complete */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

enum { PATH_BYTES = 1200 };

static bool file_failed(const char *what, const char *path)
{
    fprintf(stderr, "gpt: cannot %s %s: %s\n", what, path, errno ? strerror(errno) : "it is too short");
    return false;
}

static const char *path_of(char path[PATH_BYTES], const struct trainer *trainer, const char *name,
                           uint64_t step, uint64_t rank)
{
    if (strcmp(name, "residual") == 0)
        snprintf(path, PATH_BYTES, "%s/%s-%" PRIu64 "-%" PRIu64, trainer->options.checkpoint, name, step,
                 rank);
    else snprintf(path, PATH_BYTES, "%s/%s-%" PRIu64, trainer->options.checkpoint, name, step);
    return path;
}

/* ---- one kind of content for all tensors ---- */

enum content { WEIGHTS, STATE, RESIDUAL, CONTENTS };
static const char *const names[CONTENTS] = {"weights", "state", "residual"};

static uint64_t content_bytes(const struct trainer *trainer, enum content content, uint32_t part)
{
    if (content == WEIGHTS) return trainer->gpt.parts[part].count * sizeof(float);
    return content == STATE ? weft_state_bytes(trainer->tensors[part])
                            : weft_residual_bytes(trainer->tensors[part]);
}

static bool write_part(struct trainer *trainer, enum content content, uint32_t part, FILE *file)
{
    struct weft_tensor *tensor = trainer->tensors[part];
    const uint64_t bytes = content_bytes(trainer, content, part);
    if (fwrite(&bytes, sizeof bytes, 1, file) != 1) return file_failed("write", names[content]);
    if (content == WEIGHTS)
        return fwrite(trainer->gpt.parts[part].master, 1, bytes, file) == bytes ||
               file_failed("write", "weights");
    void *data = malloc(bytes);
    const enum weft_status status = !data              ? WEFT_ERR_NO_MEMORY
                                    : content == STATE ? weft_state_save(tensor, data, bytes)
                                                       : weft_residual_save(tensor, data, bytes);
    bool well = status >= 0 || trainer_fail(trainer, names[content]);
    well = well && (fwrite(data, 1, bytes, file) == bytes || file_failed("write", names[content]));
    free(data);
    return well;
}

static bool write_file(struct trainer *trainer, enum content content, uint64_t step)
{
    char path[PATH_BYTES];
    FILE *file = fopen(path_of(path, trainer, names[content], step, trainer->rank), "wb");
    if (!file) return file_failed("make", path);
    bool well = true;
    for (uint32_t part = 0; well && part < trainer->gpt.part_count; part++)
        well = write_part(trainer, content, part, file);
    return (fclose(file) == 0 || file_failed("write", path)) && well; /* fclose writes the last bytes */
}

/* Reads the next block of the file into memory that the caller frees. most: its largest size. */
static void *read_block(FILE *file, const char *path, uint64_t most, uint64_t *bytes_out)
{
    uint64_t bytes = 0;
    errno = 0;
    void *data =
        fread(&bytes, sizeof bytes, 1, file) == 1 && bytes <= most ? malloc(bytes ? bytes : 1) : NULL;
    if (data && fread(data, 1, bytes, file) == bytes) {
        *bytes_out = bytes;
        return data;
    }
    free(data);
    file_failed("read", path);
    return NULL;
}

static bool read_part(struct trainer *trainer, enum content content, uint32_t part, FILE *file,
                      const char *path)
{
    struct weft_tensor *tensor = trainer->tensors[part];
    const uint64_t own = content_bytes(trainer, WEIGHTS, part);
    uint64_t bytes = 0;
    void *data = read_block(file, path, 16 * own + (1 << 20), &bytes);
    if (!data) return false;
    enum weft_status status = WEFT_OK;
    if (content == STATE) status = weft_state_load(tensor, data, bytes);
    else if (content == RESIDUAL) status = weft_residual_load(tensor, data, bytes);
    else if (bytes == own) memcpy(trainer->gpt.parts[part].master, data, own);
    else status = WEFT_ERR_MALFORMED, fprintf(stderr, "gpt: %s is of a model of another shape\n", path);
    free(data);
    return status >= 0 || (content != WEIGHTS && trainer_fail(trainer, path));
}

static bool read_file(struct trainer *trainer, enum content content)
{
    char path[PATH_BYTES];
    FILE *file = fopen(path_of(path, trainer, names[content], trainer->saved_step, trainer->rank), "rb");
    if (!file) return file_failed("open", path);
    bool well = true;
    for (uint32_t part = 0; well && part < trainer->gpt.part_count; part++)
        well = read_part(trainer, content, part, file, path);
    fclose(file);
    return well;
}

/* ---- the checkpoint ---- */

static bool barrier(struct trainer *trainer)
{
    struct weft_request request = {{0}};
    return (weft_barrier(trainer->session, &request) >= 0 && weft_wait(&request, 0) >= 0) ||
           trainer_fail(trainer, "the other ranks' files");
}

static bool write_latest(struct trainer *trainer, uint64_t step)
{
    char path[PATH_BYTES], next[PATH_BYTES];
    snprintf(path, sizeof path, "%s/latest", trainer->options.checkpoint);
    snprintf(next, sizeof next, "%s/latest.new", trainer->options.checkpoint);
    FILE *file = fopen(next, "w");
    if (!file) return file_failed("make", next);
    const bool written = fprintf(file, "%" PRIu64 " %u\n", step, trainer->ranks) > 0;
    if (fclose(file) != 0 || !written) return file_failed("write", next);
    return rename(next, path) == 0 || file_failed("rename", next);
}

static void remove_old(struct trainer *trainer)
{
    char path[PATH_BYTES];
    for (uint64_t rank = trainer->rank; trainer->saved_step && rank < trainer->saved_ranks;
         rank += trainer->ranks)
        remove(path_of(path, trainer, "residual", trainer->saved_step, rank));
    for (int i = 0; i < RESIDUAL && trainer->saved_step && trainer->rank == 0; i++)
        remove(path_of(path, trainer, names[i], trainer->saved_step, 0));
}

bool checkpoint_save(struct trainer *trainer)
{
    const uint64_t step = weft_step_next(trainer->session) - 1;
    const bool first = trainer->rank == 0;
    if (step == trainer->saved_step) return true;
    if (!write_file(trainer, RESIDUAL, step) || (first && !write_file(trainer, WEIGHTS, step)) ||
        (first && !write_file(trainer, STATE, step)) || !barrier(trainer))
        return false;
    if ((first && !write_latest(trainer, step)) || !barrier(trainer)) return false;
    remove_old(trainer);
    trainer->saved_step = step;
    trainer->saved_ranks = trainer->ranks;
    return true;
}

/* Rank 0 chooses the checkpoint for all ranks. */
static bool find(struct trainer *trainer)
{
    uint64_t found[2] = {0};
    char path[PATH_BYTES];
    struct weft_request request = {{0}};
    snprintf(path, sizeof path, "%s/latest", trainer->options.checkpoint);
    FILE *file = trainer->rank == 0 ? fopen(path, "r") : NULL;
    if (file && (fscanf(file, "%" SCNu64 " %" SCNu64, &found[0], &found[1]) != 2 || !found[0] || !found[1])) {
        fclose(file);
        return fprintf(stderr, "gpt: %s is damaged\n", path), false;
    }
    if (file) fclose(file);
    if (weft_broadcast(trainer->session, found, 2, WEFT_U64, 0, &request) < 0 || weft_wait(&request, 0) < 0)
        return trainer_fail(trainer, "looking for the checkpoint");
    trainer->saved_step = found[0];
    trainer->saved_ranks = found[1];
    return true;
}

bool checkpoint_load(struct trainer *trainer)
{
    if (trainer->options.resume && !find(trainer)) return false;
    const bool any = trainer->saved_step > 0;
    if (any && trainer->rank == 0 && !read_file(trainer, WEIGHTS)) return false;
    for (uint32_t part = 0; part < trainer->gpt.part_count; part++)
        if (weft_tensor_init(trainer->tensors[part], trainer->gpt.parts[part].master) < 0)
            return trainer_fail(trainer, "first weights");
    if (any && trainer->rank < trainer->saved_ranks && !read_file(trainer, RESIDUAL)) return false;
    if (any && trainer->rank == 0 && !read_file(trainer, STATE)) return false;
    for (uint32_t part = 0; any && trainer->rank > 0 && part < trainer->gpt.part_count; part++)
        if (weft_state_load(trainer->tensors[part], NULL, 0) < 0)
            return trainer_fail(trainer, "loading the state");
    return true;
}
