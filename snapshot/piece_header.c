/* piece_header.c - the safetensors header of a piece.
 *
 *     {"__metadata__":{"format":"weft-piece-1","base":"ab..","chain":"1"},
 *      "TENSOR@OFFSET":{"dtype":"F32","shape":[COUNT],"data_offsets":[BEGIN,END]},
 *      "TENSOR@OFFSET.state0":{...}, "TENSOR@OFFSET.residual":{...}}
 *
 * or, of a worker's part: "rankN@OFFSET.bytes":{"dtype":"U8",...}
 *
 * An array of I8 is followed by its scales, "TENSOR@OFFSET.scale". Arrays lie one behind the other and fill
 * the data, so each range is known from the ones before it, and the reader refuses any other. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "snapshot/piece_header.h"

#include "snapshot/format.h"

#define FORMAT "weft-piece-1"
#define ENTRY_BYTES 256 /* of an entry without the tensor's name */

static const char *const dtype_names[WEFT_PIECE_DTYPES] = {"F32", "BF16", "I8", "U8"};

bool piece_name_is_valid(const char *name)
{
    const size_t digits = strspn(name, "0123456789abcdef");
    return digits == WEFT_PIECE_NAME_BYTES - 1 && name[digits] == 0;
}

/* ---- text ---- */

struct text {
    char *at, *end;
};

static void put(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int added = vsnprintf(text->at, (size_t)(text->end - text->at), format, args);
    va_end(args);
    WEFT_ASSERT(added >= 0 && added < text->end - text->at);
    text->at += added;
}

/* Names have no control characters. */
static void put_name(struct text *text, const struct weft_piece_array *array, const char *suffix)
{
    put(text, ",\"");
    for (const char *c = array->tensor; *c; c++) put(text, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    put(text, "@%" PRIu64, array->offset);
    if (array->part == WEFT_PIECE_WORKER) put(text, ".bytes");
    else if (array->part == WEFT_PIECE_RESIDUAL) put(text, ".residual");
    else if (array->part >= WEFT_PIECE_STATE) put(text, ".state%d", array->part - WEFT_PIECE_STATE);
    put(text, "%s\":", suffix);
}

static void put_range(struct text *text, const char *dtype, uint64_t count, size_t begin, size_t end)
{
    put(text, "{\"dtype\":\"%s\",\"shape\":[%" PRIu64 "],\"data_offsets\":[%zu,%zu]}", dtype, count, begin,
        end);
}

static uint64_t scales_of(const struct weft_piece_array *array)
{
    return (weft_piece_array_bytes(WEFT_PIECE_I8, array->count) - array->count) / sizeof(float);
}

static void put_array(struct text *text, const struct weft_piece_array *array)
{
    const enum weft_piece_dtype dtype = (enum weft_piece_dtype)array->dtype;
    const size_t end = array->at + weft_piece_array_bytes(dtype, array->count);
    put_name(text, array, "");
    if (dtype != WEFT_PIECE_I8) {
        put_range(text, dtype_names[dtype], array->count, array->at, end);
        return;
    }
    put_range(text, "I8", array->count, array->at, array->at + array->count);
    put_name(text, array, ".scale");
    put_range(text, "F32", scales_of(array), array->at + array->count, end);
}

enum weft_status piece_header_write(const struct weft_piece *piece, const struct weft_piece_ref *ref,
                                    uint8_t **out, size_t *bytes_out)
{
    size_t capacity = 8 + 2 * ENTRY_BYTES;
    for (uint32_t i = 0; i < piece->array_count; i++)
        capacity += 2 * (ENTRY_BYTES + 2 * strlen(piece->arrays[i].tensor));
    uint8_t *header = weft_alloc_bytes(piece->env, capacity);
    if (!header) return WEFT_ERR_NO_MEMORY;
    char *const json = (char *)header + 8;
    struct text text = {.at = json, .end = (char *)header + capacity};
    put(&text, "{\"__metadata__\":{\"format\":\"" FORMAT "\"");
    if (ref && ref->base[0]) put(&text, ",\"base\":\"%s\",\"chain\":\"%u\"", ref->base, ref->chain);
    put(&text, "}");
    for (uint32_t i = 0; i < piece->array_count; i++) put_array(&text, &piece->arrays[i]);
    put(&text, "}");
    while ((text.at - json) % 8 != 0) put(&text, " ");
    put_le64(header, (uint64_t)(text.at - json));
    *out = header;
    *bytes_out = 8 + (size_t)(text.at - json);
    return WEFT_OK;
}

/* ---- reading ---- */

static enum weft_status refuse(struct weft_error *error, const char *what)
{
    return weft_error_set(error, WEFT_ERR_MALFORMED, "a piece is damaged: %s", what);
}

/* Parses a number without sign or leading zeros; `end` is where it must end. */
static bool parse_number(const char *text, const char *end, uint64_t *out)
{
    uint64_t number = 0;
    if (text == end || (text[0] == '0' && end - text > 1)) return false;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(number, (uint64_t)10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(*text - '0'), &number))
            return false;
    }
    *out = number;
    return true;
}

/* TENSOR@OFFSET, .stateN, .residual or .bytes. *is_scale: with .scale behind it. */
static bool parse_name(const char *name, struct weft_piece_array *array, bool *is_scale)
{
    const char *at = strrchr(name, '@'), *dot = at ? strchr(at, '.') : NULL;
    if (!at || at == name || (size_t)(at - name) > WEFT_LIMIT_NAME_BYTES) return false;
    *array = (struct weft_piece_array){.part = WEFT_PIECE_VALUES};
    memcpy(array->tensor, name, (size_t)(at - name));
    if (!weft_text_is_printable(array->tensor) ||
        !parse_number(at + 1, dot ? dot : at + strlen(at), &array->offset))
        return false;
    *is_scale = dot && strcmp(dot, ".scale") == 0;
    if (!dot || *is_scale) return true;
    if (strcmp(dot, ".bytes") == 0) array->part = WEFT_PIECE_WORKER;
    else if (strcmp(dot, ".residual") == 0) array->part = WEFT_PIECE_RESIDUAL;
    else if (strncmp(dot, ".state", 6) == 0 && dot[6] >= '0' &&
             dot[6] < '0' + WEFT_PIECE_RESIDUAL - WEFT_PIECE_STATE && dot[7] == 0)
        array->part = (uint8_t)(WEFT_PIECE_STATE + dot[6] - '0');
    else return false;
    return true;
}

/* An entry: dtype, one dimension, a range of exactly its bytes that begins at `at`. */
static bool parse_entry(const json_t *entry, size_t at, size_t limit, uint8_t *dtype_out, uint64_t *count_out)
{
    const json_t *shape = json_object_get(entry, "shape"), *range = json_object_get(entry, "data_offsets");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype || json_array_size(shape) != 1 || json_array_size(range) != 2) return false;
    const json_int_t count = json_integer_value(json_array_get(shape, 0)),
                     begin = json_integer_value(json_array_get(range, 0)),
                     end = json_integer_value(json_array_get(range, 1));
    for (*dtype_out = 0; *dtype_out < WEFT_PIECE_DTYPES; ++*dtype_out)
        if (strcmp(dtype, dtype_names[*dtype_out]) == 0) break;
    if (*dtype_out == WEFT_PIECE_DTYPES || count <= 0 || (uint64_t)count > limit || begin < 0 || end < begin)
        return false;
    static const uint8_t element_bytes[WEFT_PIECE_DTYPES] = {4, 2, 1, 1};
    *count_out = (uint64_t)count;
    return (uint64_t)begin == at && (uint64_t)end <= limit &&
           (uint64_t)(end - begin) == (uint64_t)count * element_bytes[*dtype_out];
}

static enum weft_status read_metadata(const json_t *metadata, struct weft_piece_ref *ref,
                                      struct weft_error *error)
{
    const char *format = json_string_value(json_object_get(metadata, "format")),
               *base = json_string_value(json_object_get(metadata, "base")),
               *chain = json_string_value(json_object_get(metadata, "chain"));
    uint64_t length = 0;
    WEFT_TRY(snapshot_format_check(format, FORMAT, "a piece", error));
    if (!base && !chain) return WEFT_OK;
    if (!base || !piece_name_is_valid(base) || !chain ||
        !parse_number(chain, chain + strlen(chain), &length) || length < 1 || length > WEFT_PIECE_CHAIN_MAX)
        return refuse(error, "its base has no valid name or its chain no valid length");
    memcpy(ref->base, base, WEFT_PIECE_NAME_BYTES);
    ref->chain = (uint32_t)length;
    return WEFT_OK;
}

/* The scales belong to the I8 array before them. */
static bool is_scale_of(const struct weft_piece_array *scale, uint8_t dtype, uint64_t count,
                        const struct weft_piece_array *array)
{
    return array->dtype == WEFT_PIECE_I8 && dtype == WEFT_PIECE_F32 && array->offset == scale->offset &&
           strcmp(array->tensor, scale->tensor) == 0 && count == scales_of(array);
}

static enum weft_status read_arrays(struct weft_piece *piece, json_t *root, size_t data_bytes,
                                    struct weft_error *error)
{
    const char *key;
    json_t *entry;
    size_t at = 0;
    bool wants_scale = false;
    json_object_foreach(root, key, entry)
    {
        struct weft_piece_array array;
        uint8_t dtype;
        uint64_t count;
        bool is_scale;
        if (strcmp(key, "__metadata__") == 0) continue;
        if (!parse_name(key, &array, &is_scale) || !parse_entry(entry, at, data_bytes, &dtype, &count) ||
            is_scale != wants_scale)
            return refuse(error, "an array has no valid name, type or range");
        at += count * (dtype == WEFT_PIECE_F32 ? 4 : dtype == WEFT_PIECE_BF16 ? 2 : 1);
        wants_scale = false;
        if (is_scale) {
            if (!is_scale_of(&array, dtype, count, &piece->arrays[piece->array_count - 1]))
                return refuse(error, "scales do not belong to the array before them");
            continue;
        }
        if (piece->array_count == piece->array_capacity) return refuse(error, "it has too many arrays");
        array.dtype = dtype;
        array.count = count;
        array.at = at - count * (dtype == WEFT_PIECE_F32 ? 4 : dtype == WEFT_PIECE_BF16 ? 2 : 1);
        if ((array.part == WEFT_PIECE_WORKER) != (dtype == WEFT_PIECE_U8))
            return refuse(error, "bytes of a worker are not u8");
        if (array.part != WEFT_PIECE_VALUES && array.part != WEFT_PIECE_WORKER && dtype != WEFT_PIECE_F32)
            return refuse(error, "a state is not f32");
        piece->arrays[piece->array_count++] = array;
        wants_scale = dtype == WEFT_PIECE_I8;
    }
    if (wants_scale || at != data_bytes) return refuse(error, "its arrays do not fill its data");
    piece->bytes = at;
    return WEFT_OK;
}

enum weft_status piece_header_read(struct weft_piece *piece, const uint8_t *file, size_t bytes,
                                   struct weft_piece_ref *ref, size_t *data_out, struct weft_error *error)
{
    const uint64_t length = bytes >= 8 ? get_le64(file) : 0;
    if (length < 2 || length > bytes - 8 || length > WEFT_PIECE_HEADER_BYTES_MAX - 8)
        return refuse(error, "its header has no valid length");
    json_t *root = json_loadb((const char *)file + 8, (size_t)length, JSON_REJECT_DUPLICATES, NULL);
    enum weft_status status = json_is_object(root) ? WEFT_OK : refuse(error, "its header is not JSON");
    *data_out = 8 + (size_t)length;
    if (status == WEFT_OK) status = read_metadata(json_object_get(root, "__metadata__"), ref, error);
    if (status == WEFT_OK) status = read_arrays(piece, root, bytes - *data_out, error);
    json_decref(root);
    return status;
}
