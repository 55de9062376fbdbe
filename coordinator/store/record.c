/* record.c - changes as bytes of the file, and back. The bytes of a file are untrusted.
 *
 *     head    body_bytes u32, 0 u32, xxh3-64 of the body u64
 *     body    hash of the record before u64, revision u64, changes u32, then each change:
 *             kind u8, key_bytes u8, value_bytes u32, create u64, mod u64, lease u64, ttl_ns u64,
 *             beats u64, key, value
 *
 * Little endian. The hash of the record before chains the records: one that was left behind by an earlier
 * file does not fit. */
#include <string.h>

#include "coordinator/store/state.h"
#include "proto/proto.h"

#define BODY_HEAD_BYTES 20u
#define CHANGE_HEAD_BYTES 46u
#define REVISION_MAX ((uint64_t)1 << 62)

size_t store_record_bytes(const struct store_change *changes, size_t count)
{
    size_t bytes = BODY_HEAD_BYTES;
    if (count > STORE_RECORD_CHANGES_MAX) return 0;
    for (size_t i = 0; i < count; i++) {
        const struct weft_store_entry *entry = &changes[i].entry;
        bytes += CHANGE_HEAD_BYTES + (entry->key ? strlen(entry->key) : 0) + entry->bytes;
        if (bytes > STORE_RECORD_BODY_BYTES_MAX) return 0;
    }
    return STORE_RECORD_HEAD_BYTES + bytes;
}

static uint8_t *encode_change(const struct store_change *change, uint8_t *out)
{
    const struct weft_store_entry *entry = &change->entry;
    const size_t key_bytes = entry->key ? strlen(entry->key) : 0;
    out[0] = (uint8_t)change->kind;
    out[1] = (uint8_t)key_bytes;
    put_le32(out + 2, (uint32_t)entry->bytes);
    const uint64_t numbers[] = {entry->create_revision, entry->mod_revision, entry->lease, change->ttl_ns,
                                change->beats};
    for (size_t i = 0; i < 5; i++) put_le64(out + 6 + 8 * i, numbers[i]);
    if (key_bytes > 0) memcpy(out + CHANGE_HEAD_BYTES, entry->key, key_bytes);
    if (entry->bytes > 0) memcpy(out + CHANGE_HEAD_BYTES + key_bytes, entry->value, entry->bytes);
    return out + CHANGE_HEAD_BYTES + key_bytes + entry->bytes;
}

uint64_t store_record_encode(const struct store_change *changes, size_t count, uint64_t revision,
                             uint64_t chain, uint8_t *out)
{
    uint8_t *body = out + STORE_RECORD_HEAD_BYTES, *at = body + BODY_HEAD_BYTES;
    put_le64(body, chain);
    put_le64(body + 8, revision);
    put_le32(body + 16, (uint32_t)count);
    for (size_t i = 0; i < count; i++) at = encode_change(&changes[i], at);
    const uint64_t hash = weft_bytes_hash(body, (size_t)(at - body));
    put_le32(out, (uint32_t)(at - body));
    put_le32(out + 4, 0);
    put_le64(out + 8, hash);
    return hash;
}

/* ---- decode ---- */

static bool change_is_valid(const struct store_change *change, size_t key_bytes, uint64_t revision)
{
    const struct weft_store_entry *entry = &change->entry;
    const bool has_revisions = entry->create_revision > 0 && entry->create_revision <= entry->mod_revision &&
                               entry->mod_revision <= revision;
    const bool has_key = change->kind == STORE_PUT || change->kind == STORE_DELETE;
    if (change->kind < STORE_PUT || change->kind > STORE_REVOKE) return false;
    if (entry->lease > revision || (change->kind == STORE_PUT && !has_revisions)) return false;
    if (has_key != (key_bytes > 0) || (change->kind != STORE_PUT && entry->bytes > 0)) return false;
    return has_key ? store_key_is_valid(entry->key) : entry->lease != 0;
}

/* Decodes one change; `text` gets the key. Returns the bytes that it has; 0: malformed. */
static size_t decode_change(const uint8_t *data, size_t bytes, uint64_t revision, struct store_change *change,
                            char *text)
{
    if (bytes < CHANGE_HEAD_BYTES) return 0;
    const size_t key_bytes = data[1], value_bytes = get_le32(data + 2);
    if (value_bytes > WEFT_STORE_VALUE_BYTES || bytes - CHANGE_HEAD_BYTES < key_bytes + value_bytes) return 0;
    memcpy(text, data + CHANGE_HEAD_BYTES, key_bytes);
    text[key_bytes] = 0;
    *change = (struct store_change){
        .kind = (enum store_change_kind)data[0],
        .entry = {key_bytes ? text : NULL, value_bytes ? data + CHANGE_HEAD_BYTES + key_bytes : NULL,
                  value_bytes, get_le64(data + 6), get_le64(data + 14), get_le64(data + 22)},
        .ttl_ns = get_le64(data + 30),
        .beats = get_le64(data + 38)};
    const bool is_whole = key_bytes == 0 || strlen(text) == key_bytes;
    return is_whole && change_is_valid(change, key_bytes, revision)
               ? CHANGE_HEAD_BYTES + key_bytes + value_bytes
               : 0;
}

void store_record_free(struct weft_env *env, struct store_record *record)
{
    weft_free_bytes(env, record->changes);
    weft_free_bytes(env, record->texts);
    *record = (struct store_record){0};
}

static enum weft_status decode_body(struct weft_env *env, const uint8_t *body, size_t bytes,
                                    struct store_record *record)
{
    const uint32_t count = get_le32(body + 16);
    size_t at = BODY_HEAD_BYTES;
    if (get_le64(body + 8) >= REVISION_MAX || count > STORE_RECORD_CHANGES_MAX ||
        count > (bytes - at) / CHANGE_HEAD_BYTES)
        return WEFT_ERR_MALFORMED;
    *record = (struct store_record){.revision = get_le64(body + 8), .change_count = count};
    record->changes = weft_alloc_array(env, count + 1, sizeof *record->changes);
    record->texts = weft_alloc_array(env, count + 1, WEFT_STORE_KEY_BYTES + 1);
    if (!record->changes || !record->texts) {
        store_record_free(env, record);
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        const size_t used = decode_change(body + at, bytes - at, record->revision, &record->changes[i],
                                          record->texts + (size_t)i * (WEFT_STORE_KEY_BYTES + 1));
        at += used;
        if (used > 0) continue;
        store_record_free(env, record);
        return WEFT_ERR_MALFORMED;
    }
    if (at == bytes) return WEFT_OK;
    store_record_free(env, record);
    return WEFT_ERR_MALFORMED;
}

/* Length of the body that the head announces; 0: no head of a record. */
static size_t body_bytes_of(const uint8_t *data)
{
    const size_t bytes = get_le32(data);
    const bool is_head =
        bytes >= BODY_HEAD_BYTES && bytes <= STORE_RECORD_BODY_BYTES_MAX && get_le32(data + 4) == 0;
    return is_head ? bytes : 0;
}

bool store_record_is_in(const uint8_t *data, size_t bytes)
{
    for (size_t at = 0; at + STORE_RECORD_HEAD_BYTES <= bytes; at++) {
        const size_t body_bytes = body_bytes_of(data + at);
        const uint8_t *body = data + at + STORE_RECORD_HEAD_BYTES;
        if (body_bytes > 0 && body_bytes <= bytes - at - STORE_RECORD_HEAD_BYTES &&
            weft_bytes_hash(body, body_bytes) == get_le64(data + at + 8))
            return true;
    }
    return false;
}

enum weft_status store_record_decode(struct weft_env *env, const uint8_t *data, size_t bytes, uint64_t *chain,
                                     struct store_record *record_out, size_t *used_out)
{
    if (bytes < STORE_RECORD_HEAD_BYTES) return WEFT_ERR_TRUNCATED;
    const size_t body_bytes = body_bytes_of(data);
    const uint8_t *body = data + STORE_RECORD_HEAD_BYTES;
    if (body_bytes == 0) return WEFT_ERR_MALFORMED;
    if (bytes - STORE_RECORD_HEAD_BYTES < body_bytes) return WEFT_ERR_TRUNCATED;
    const uint64_t hash = weft_bytes_hash(body, body_bytes);
    if (hash != get_le64(data + 8) || get_le64(body) != *chain) return WEFT_ERR_MALFORMED;
    WEFT_TRY(decode_body(env, body, body_bytes, record_out));
    *used_out = STORE_RECORD_HEAD_BYTES + body_bytes;
    *chain = hash;
    return WEFT_OK;
}
