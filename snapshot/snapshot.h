/* snapshot.h - public header of the snapshot module: the files of a snapshot of server shards.
 *
 *     arrays of chunks -> piece -> FOLDER/pieces/ab/ab...st.zst     piece.c, piece_header.c, piece_file.c
 *     all pieces of a step -> FOLDER/snap-STEP.json                 manifest.c, manifest_read.c
 *     files                part, fsync, rename, fsync of the folder  folder.c
 *     pieces of no manifest that is kept are removed                 prune.c
 *
 * A piece is named by the XXH3-128 of its content, so equal content is stored once. A snapshot exists from
 * the rename of its manifest on; before it, its pieces are garbage. Readers bound every size of a file before
 * they use it. Functions block on the disk: call them on a thread without a loop. */
#ifndef WEFT_SNAPSHOT_H
#define WEFT_SNAPSHOT_H

#include "base/base.h"
#include "proto/proto.h"

#define WEFT_PIECE_BYTES_MAX ((size_t)16 << 20)       /* of the arrays in a piece */
#define WEFT_PIECE_HEADER_BYTES_MAX ((size_t)2 << 20) /* of the safetensors header, with its length */
#define WEFT_PIECE_ARRAYS_MAX 2048u
#define WEFT_PIECE_CHAIN_MAX 8u     /* pieces that a piece depends on */
#define WEFT_PIECE_NAME_BYTES 33u   /* 32 hexadecimal digits and a NUL */
#define WEFT_PIECE_SCALE_BLOCK 256u /* elements of WEFT_PIECE_I8 with one scale */

/* ---- pieces ---- */

enum weft_piece_dtype {
    WEFT_PIECE_F32 = 0,
    WEFT_PIECE_BF16 = 1,
    WEFT_PIECE_I8 = 2,
    WEFT_PIECE_WEIGHT_DTYPES = 3, /* types of weights */
    WEFT_PIECE_U8 = 3,            /* bytes of a worker's part */
    WEFT_PIECE_DTYPES = 4,
};
/* What an array holds. Optimiser state s is WEFT_PIECE_STATE + s. */
enum weft_piece_part {
    WEFT_PIECE_VALUES = 0,
    WEFT_PIECE_STATE = 1,
    WEFT_PIECE_RESIDUAL = 8,
    WEFT_PIECE_PARTS = 9,  /* parts of a tensor */
    WEFT_PIECE_WORKER = 9, /* bytes of a worker's part: the only array of its piece */
};

/* Elements offset .. offset + count of one part of a tensor. An array of WEFT_PIECE_I8 is followed by one
 * scale, f32, for each WEFT_PIECE_SCALE_BLOCK elements. Of a worker's part: bytes; tensor is "rankN". */
struct weft_piece_array {
    char tensor[WEFT_LIMIT_NAME_BYTES + 1];
    uint8_t part, dtype;
    uint64_t offset, count;
    uint64_t step;      /* last closed step of the elements; in the manifest, not in the file */
    uint32_t tensor_id; /* number of the tensor in its job; not in the file */
    size_t at;          /* first byte in the piece's data */
};

struct weft_piece {
    struct weft_env *env;
    struct weft_list link;           /* of the owner's list */
    struct weft_piece_array *arrays; /* (array_count,) owned */
    uint32_t array_count, array_capacity;
    uint8_t *data; /* (bytes,) owned */
    size_t bytes, capacity;
};

/* Has memory for arrays of `bytes` f32 in all. NULL: no memory. */
struct weft_piece *weft_piece_create(struct weft_env *env, uint32_t array_capacity, size_t bytes);
void weft_piece_free(struct weft_piece *piece); /* NULL has no effect */
/* Adds an array of f32 whose values the caller writes to the result; they are not initialised. Preconditions:
 * it fits, and the name is valid. */
float *weft_piece_place(struct weft_piece *piece, const struct weft_piece_array *array);
/* The same with a copy of the values. */
void weft_piece_add(struct weft_piece *piece, const struct weft_piece_array *array, const float *values);
/* A piece with bytes offset .. offset + bytes of the part of a worker, copied. NULL: no memory. */
struct weft_piece *weft_piece_create_worker(struct weft_env *env, uint32_t rank, uint64_t offset,
                                            const uint8_t *data, size_t bytes);
size_t weft_piece_array_bytes(enum weft_piece_dtype dtype, uint64_t count); /* with scales */
/* Converts the arrays of values in place; states and residuals stay f32. */
void weft_piece_quantise(struct weft_piece *piece, enum weft_piece_dtype dtype);
/* Writes elements first .. first + count of array `index` as f32. */
void weft_piece_values(const struct weft_piece *piece, uint32_t index, uint64_t first, uint64_t count,
                       float *out);
bool weft_piece_dtype_parse(const char *text, enum weft_piece_dtype *dtype_out); /* f32, bf16, int8 */
const char *weft_piece_dtype_text(enum weft_piece_dtype dtype);

/* Where the content of a piece is. */
struct weft_piece_ref {
    char name[WEFT_PIECE_NAME_BYTES], base[WEFT_PIECE_NAME_BYTES]; /* base "": none */
    uint32_t chain;                                                /* pieces that it depends on */
    uint64_t bytes, stored;                                        /* of its arrays; of its file */
};

/* Files of a snapshot, below its folder. */
#define WEFT_SNAPSHOT_FILE_BYTES 64u
void weft_snapshot_piece_file(const char *name, char file_out[WEFT_SNAPSHOT_FILE_BYTES]);
void weft_snapshot_manifest_file(uint64_t step, char file_out[WEFT_SNAPSHOT_FILE_BYTES]);
/* The name of its content. WEFT_ERR_NO_MEMORY. */
enum weft_status weft_piece_name(const struct weft_piece *piece, char name_out[WEFT_PIECE_NAME_BYTES]);
/* A hash of names, ranges and types without the data. Pieces of equal layout can be bases of each other. */
enum weft_status weft_piece_layout(const struct weft_piece *piece, uint64_t *layout_out);
/* The file of a piece. base: a piece of equal layout, whose name is base_name; NULL: none. */
enum weft_status weft_piece_encode(const struct weft_piece *piece, const struct weft_piece *base,
                                   const char *base_name, uint32_t chain, uint8_t **file_out,
                                   size_t *bytes_out);
/* Reads a file. If it has a base, the data is still the difference: base_out has the name, and
 * weft_piece_rebase makes it whole. WEFT_ERR_MALFORMED and a sentence. */
enum weft_status weft_piece_decode(struct weft_env *env, const uint8_t *file, size_t bytes,
                                   struct weft_piece **piece_out, struct weft_piece_ref *ref_out,
                                   struct weft_error *error);
/* Adds the base. WEFT_ERR_MALFORMED: another layout. */
enum weft_status weft_piece_rebase(struct weft_piece *piece, const struct weft_piece *base);

/* ---- manifest ---- */

struct weft_snapshot_tensor {
    char name[WEFT_LIMIT_NAME_BYTES + 1], codec[WEFT_LIMIT_NAME_BYTES + 1],
        optimizer[WEFT_LIMIT_NAME_BYTES + 1];
    uint32_t dim_count;
    uint64_t dims[WEFT_LIMIT_DIMS];
};
/* What a worker has added: opaque bytes, in pieces whose only range has WEFT_PIECE_WORKER. */
struct weft_snapshot_worker {
    uint32_t rank;
    uint64_t bytes; /* above 0 */
};
/* A range of a piece; tensor is an index of the manifest. Of WEFT_PIECE_WORKER: the rank. */
struct weft_snapshot_range {
    uint32_t tensor;
    uint8_t part;
    uint64_t offset, count, step;
};
struct weft_snapshot_piece {
    struct weft_piece_ref ref;
    struct weft_snapshot_range *ranges; /* (range_count,) owned */
    uint32_t range_count;
};
struct weft_snapshot {
    struct weft_env *env;
    char job[WEFT_LIMIT_NAME_BYTES + 1];
    uint64_t step, time_s; /* time_s: seconds since 1970 */
    uint32_t workers, shards;
    enum weft_piece_dtype weights;
    struct weft_snapshot_tensor *tensors; /* (tensor_count,) owned */
    uint32_t tensor_count, tensor_capacity;
    struct weft_snapshot_worker *parts; /* (part_count,) owned, by rank */
    uint32_t part_count, part_capacity;
    struct weft_snapshot_piece *pieces; /* (piece_count,) owned */
    uint32_t piece_count, piece_capacity;
};
#define WEFT_SNAPSHOT_MANIFEST_BYTES_MAX ((size_t)1 << 30)
#define WEFT_SNAPSHOT_PIECES_MAX ((uint32_t)1 << 20)

void weft_snapshot_init(struct weft_snapshot *snapshot, struct weft_env *env);
void weft_snapshot_fini(struct weft_snapshot *snapshot);
/* Adds an entry of zeros; NULL: no memory. Earlier pointers of the same kind become invalid. */
struct weft_snapshot_tensor *weft_snapshot_add_tensor(struct weft_snapshot *snapshot);
struct weft_snapshot_piece *weft_snapshot_add_piece(struct weft_snapshot *snapshot, uint32_t range_count);
/* Adds the part of a worker. WEFT_ERR_EXISTS: the rank has one; WEFT_ERR_NO_MEMORY. */
enum weft_status weft_snapshot_add_part(struct weft_snapshot *snapshot, uint32_t rank, uint64_t bytes);
const struct weft_snapshot_worker *weft_snapshot_find_part(const struct weft_snapshot *snapshot,
                                                           uint32_t rank); /* NULL: none */
/* The piece holds bytes of a worker's part, and no arrays of tensors. */
bool weft_snapshot_is_worker_piece(const struct weft_snapshot_piece *piece);
/* Text of the manifest, owned by the caller. */
enum weft_status weft_snapshot_write(const struct weft_snapshot *snapshot, char **text_out,
                                     size_t *bytes_out);
/* Checks every field. On an error nothing is to be freed. */
enum weft_status weft_snapshot_read(struct weft_env *env, const char *text, size_t bytes,
                                    struct weft_snapshot *out, struct weft_error *error);
const struct weft_snapshot_tensor *weft_snapshot_find(const struct weft_snapshot *snapshot, const char *name,
                                                      uint32_t *index_out);

/* ---- folder ---- */

/* Makes the folder and FOLDER/pieces. */
enum weft_status weft_snapshot_folder_make(const char *folder, struct weft_error *error);
/* Stores the piece unless its content is there. base_ref NULL: in full. ref_out: what the manifest has to
 * name. */
enum weft_status weft_piece_store(const struct weft_piece *piece, const char *folder,
                                  const struct weft_piece *base, const struct weft_piece_ref *base_ref,
                                  struct weft_piece_ref *ref_out, struct weft_error *error);
/* Reads the piece and its bases, and compares the content with the name. */
enum weft_status weft_piece_load(struct weft_env *env, const char *folder, const char *name,
                                 struct weft_piece **out, struct weft_error *error);
/* Writes the manifest and renames it into place: the snapshot exists from then on. */
enum weft_status weft_snapshot_commit(const struct weft_snapshot *snapshot, const char *folder,
                                      struct weft_error *error);
/* Steps of the snapshots in the folder, ascending, owned by the caller. No snapshot: *count_out 0, NULL. */
enum weft_status weft_snapshot_steps(struct weft_env *env, const char *folder, uint64_t **steps_out,
                                     uint32_t *count_out, struct weft_error *error);
/* Reads the manifest of the step; WEFT_NEVER: of the newest. */
enum weft_status weft_snapshot_load(struct weft_env *env, const char *folder, uint64_t step,
                                    struct weft_snapshot *out, struct weft_error *error);
/* Splits FOLDER[:STEP]; step WEFT_NEVER without one. */
enum weft_status weft_snapshot_place_parse(const char *text, char *folder_out, size_t folder_bytes,
                                           uint64_t *step_out, struct weft_error *error);

/* ---- interval: "100 steps", "60s", "5min" ---- */
struct weft_snapshot_interval {
    uint64_t steps, ns; /* one of them is above 0 */
};
enum weft_status weft_snapshot_interval_parse(const char *text, struct weft_snapshot_interval *out,
                                              struct weft_error *error);

/* ---- verify and export ---- */

/* Called after each piece, with bytes of arrays. May be NULL. */
struct weft_snapshot_progress {
    void (*fn)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    void *context;
};
/* Bytes of arrays, and of the files of all pieces. */
void weft_snapshot_sizes(const struct weft_snapshot *snapshot, uint64_t *bytes_out, uint64_t *stored_out);
/* Reads every piece, compares content and arrays with names and manifest. */
enum weft_status weft_snapshot_verify(const struct weft_snapshot *snapshot, const char *folder,
                                      const struct weft_snapshot_progress *progress,
                                      struct weft_error *error);
/* Writes one safetensors file of f32: TENSOR in its shape, and, if asked, TENSOR.state0 and further. */
enum weft_status weft_snapshot_export(const struct weft_snapshot *snapshot, const char *folder,
                                      const char *path, bool with_states,
                                      const struct weft_snapshot_progress *progress,
                                      struct weft_error *error);
/* Reads bytes of a worker's part from `offset` on, to the end of one piece; *data_out is owned by the caller.
 * WEFT_ERR_NOT_FOUND: the snapshot has no such bytes. */
enum weft_status weft_snapshot_load_part(const struct weft_snapshot *snapshot, const char *folder,
                                         uint32_t rank, uint64_t offset, uint8_t **data_out,
                                         size_t *bytes_out, struct weft_error *error);
/* Loads a piece of the snapshot; its arrays are those of the manifest, with their steps. */
enum weft_status weft_snapshot_load_piece(const struct weft_snapshot *snapshot, const char *folder,
                                          uint32_t index, struct weft_piece **out, struct weft_error *error);

/* ---- hook: a program that copies files to and from another store (hook.c) ---- */
struct weft_snapshot_hook;
enum weft_status weft_snapshot_hook_create(struct weft_env *env, const char *program,
                                           struct weft_snapshot_hook **out, struct weft_error *error);
void weft_snapshot_hook_free(struct weft_snapshot_hook *hook); /* ends its calls; NULL has no effect */
/* Any thread: running and later calls fail at once. NULL has no effect. */
void weft_snapshot_hook_cancel(struct weft_snapshot_hook *hook);
/* Starts `put` of a file of the folder; waits while four others run. An error is that of the next wait. */
void weft_snapshot_hook_put(struct weft_snapshot_hook *hook, const char *folder, const char *name);
/* Waits for all puts. WEFT_ERR_IO: one has failed three times. */
enum weft_status weft_snapshot_hook_wait(struct weft_snapshot_hook *hook, struct weft_error *error);
/* Gets the manifest and the pieces that the folder lacks. *step WEFT_NEVER: the newest that is listed. */
enum weft_status weft_snapshot_hook_fetch(struct weft_snapshot_hook *hook, const char *folder, uint64_t *step,
                                          struct weft_error *error);

/* Removes all but the newest `keep` snapshots from the other store (hook_prune.c). No put is running. */
enum weft_status weft_snapshot_hook_prune(struct weft_snapshot_hook *hook, const char *folder, uint32_t keep,
                                          struct weft_error *error);

/* ---- prune ---- */
struct weft_snapshot_prune_result {
    uint32_t manifests, pieces; /* removed files */
    uint64_t bytes;
};
/* Removes all but the newest `keep` manifests, then the pieces that none of these needs and that were not
 * written within the last age_s seconds. */
enum weft_status weft_snapshot_prune(struct weft_env *env, const char *folder, uint32_t keep, uint64_t age_s,
                                     struct weft_snapshot_prune_result *result_out, struct weft_error *error);

#endif
