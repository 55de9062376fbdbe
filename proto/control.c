/* control.c - control messages: pack, unpack, and the check of all limits.
 *
 *     frame -> protobuf-c (env's memory, with a budget) -> control_ok -> a message with valid counts, lengths
 *     and ranges
 *
 * The coordinator checks whether the message is valid in its state. The same check runs before packing, so an
 * invalid value is detected at its origin. Protobuf expands: two bytes of a frame can request a struct of 120
 * bytes. A valid message expands about tenfold. Decoding gets DECODE_FACTOR times the frame plus a base; a
 * frame that needs more is malformed. The chunks of a Declared's runs have a budget of their own. Only proto
 * calls protobuf-c; other modules use its structs. */
#include <string.h>

#include "proto/chunk_runs.h"
#include "proto/control_checks.h"
#include "proto/proto.h"
#include "proto/wire_limits.h"

#define DECODE_FACTOR 40u
#define DECODE_BASE_BYTES (64u << 10)
#define CHUNK_BYTES (sizeof(Weft__Control__Chunk) + sizeof(Weft__Control__Chunk *))

typedef Weft__Control__Control Control;

/* ---- memory ---- */

static void *decode_alloc(void *context, size_t bytes)
{
    struct control_memory *memory = context;
    if (bytes > memory->left_bytes) return NULL;
    memory->left_bytes -= bytes;
    return weft_alloc_bytes(memory->env, bytes ? bytes : 1);
}

/* Freed bytes do not return to the budget: it bounds work as well as memory. */
static void decode_free(void *context, void *block)
{
    struct control_memory *memory = context;
    weft_free_bytes(memory->env, block);
}

ProtobufCAllocator control_allocator(struct control_memory *memory, struct weft_env *env, size_t bytes)
{
    *memory = (struct control_memory){.env = env, .left_bytes = DECODE_BASE_BYTES + bytes * DECODE_FACTOR};
    return (ProtobufCAllocator){.alloc = decode_alloc, .free = decode_free, .allocator_data = memory};
}

/* ---- checks of parts ---- */

bool control_name_ok(const char *name, size_t bytes_min)
{
    if (!name) return false;
    size_t bytes = strnlen(name, WEFT_LIMIT_NAME_BYTES + 1);
    if (bytes < bytes_min || bytes > WEFT_LIMIT_NAME_BYTES) return false;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        if (*c < 0x20 || *c == 0x7f) return false;
    return true;
}

static bool text_ok(const char *text)
{
    return text && strnlen(text, WEFT_LIMIT_TEXT_BYTES + 1) <= WEFT_LIMIT_TEXT_BYTES;
}

static bool proof_ok(const ProtobufCBinaryData *proof)
{
    return proof->len == 0 || proof->len == WEFT_PROOF_BYTES;
}

static bool addresses_ok(size_t count, const ProtobufCBinaryData *addresses)
{
    if (count == 0 || count > WEFT_LIMIT_ENGINES) return false;
    for (size_t i = 0; i < count; i++)
        if (addresses[i].len == 0 || addresses[i].len > WEFT_LIMIT_ADDRESS_BYTES) return false;
    return true;
}

/* Elements of a shape; 0: invalid or too large. */
static uint64_t dims_elems(size_t count, const uint64_t *dims)
{
    uint64_t elems = 1;
    if (count == 0 || count > WEFT_LIMIT_DIMS) return 0;
    for (size_t i = 0; i < count; i++) {
        if (dims[i] == 0 || dims[i] > WEFT_LIMIT_TENSOR_ELEMS / elems) return 0;
        elems *= dims[i];
    }
    return elems;
}

/* ---- checks of bodies ---- */

/* A Hello or Challenge without a wire version of this code must be decodable up to its versions, so that the
 * refusal is a sentence. Only lengths are checked then. */
static bool is_spoken(struct weft_wire_range range)
{
    return weft_wire_range_common(range, weft_wire_range_own(0)) > 0;
}

static bool challenge_ok(const Weft__Control__Challenge *challenge)
{
    if (!control_name_ok(challenge->weft_version, 0) || !control_name_ok(challenge->job, 0)) return false;
    return !is_spoken(weft_wire_range_of_challenge(challenge)) || challenge->nonce.len == WEFT_NONCE_BYTES;
}

static bool hello_ok(const Weft__Control__Hello *hello)
{
    if (!control_name_ok(hello->weft_version, 0) || !control_name_ok(hello->job, 0) ||
        !control_name_ok(hello->name, 0) || !control_name_ok(hello->host, 0))
        return false;
    /* a coordinator of version 1 reads wire_version alone */
    const struct weft_wire_range version = {hello->wire_version, hello->wire_version};
    if (!is_spoken(weft_wire_range_of_hello(hello)) && !is_spoken(version)) return true;
    if (hello->role < WEFT__CONTROL__ROLE__ROLE_WORKER || hello->role > WEFT__CONTROL__ROLE__ROLE_OBSERVER)
        return false;
    if (hello->name[0] == 0 || hello->job[0] == 0) return false;
    if (hello->wanted_index < -1 || hello->wanted_index >= (int64_t)WEFT_LIMIT_WORKERS) return false;
    return hello->endpoints <= WEFT_LIMIT_ENGINES && proof_ok(&hello->proof) &&
           hello->nonce.len == WEFT_NONCE_BYTES &&
           (hello->process.len == 0 || hello->process.len == WEFT_PROCESS_IDENTITY_BYTES) &&
           control_name_ok(hello->candidate, 0) && control_name_ok(hello->zone, 0);
}

static bool welcome_ok(const Weft__Control__Welcome *welcome)
{
    return welcome->index < WEFT_LIMIT_WORKERS && welcome->workers <= WEFT_LIMIT_WORKERS &&
           welcome->workers_min <= welcome->workers && welcome->workers_max <= WEFT_LIMIT_WORKERS &&
           welcome->shards <= WEFT_LIMIT_SHARDS && welcome->endpoint_first < WEFT_LIMIT_ENDPOINTS &&
           welcome->copies <= WEFT_LIMIT_COPIES && proof_ok(&welcome->proof) &&
           (welcome->resume_key.len == 0 || welcome->resume_key.len == WEFT_RESUME_KEY_BYTES);
}

bool control_member_named_ok(const Weft__Control__Member *member)
{
    if (member->role != WEFT__CONTROL__ROLE__ROLE_WORKER && member->role != WEFT__CONTROL__ROLE__ROLE_SHARD)
        return false;
    return member->index < WEFT_LIMIT_WORKERS && control_name_ok(member->name, 1) &&
           control_name_ok(member->host, 0) && control_name_ok(member->candidate, 0) &&
           member->endpoint_first < WEFT_LIMIT_ENDPOINTS;
}

bool control_member_ok(const Weft__Control__Member *member)
{
    return control_member_named_ok(member) && addresses_ok(member->n_addresses, member->addresses);
}

static bool roster_ok(const Weft__Control__Roster *roster)
{
    if (!control_name_ok(roster->coordinator, 0)) return false;
    if (roster->n_members == 0 || roster->n_members > WEFT_LIMIT_WORKERS + WEFT_LIMIT_SHARDS) return false;
    for (size_t i = 0; i < roster->n_members; i++)
        if (!control_member_ok(roster->members[i])) return false;
    return true;
}

bool control_cost_ok(const Weft__Control__LinkCost *cost)
{
    if (!cost) return true;
    bool ring_ok = cost->ring.len % WEFT_RING_HOST_BYTES == 0 &&
                   cost->ring.len / WEFT_RING_HOST_BYTES <= WEFT_LIMIT_WORKERS;
    bool runs_ok = cost->runs.len == 0 || cost->runs.len == WEFT_RUNS_BYTES;
    bool calibration_ok = cost->calibration.len <= WEFT_LIMIT_CALIBRATION_BYTES;
    return ring_ok && runs_ok && calibration_ok && cost->unknown <= cost->pairs;
}

static bool host_health_ok(const Weft__Control__HostHealth *health)
{
    if (!control_name_ok(health->host, 1) || health->n_findings > WEFT_LIMIT_HOST_FINDINGS) return false;
    for (size_t i = 0; i < health->n_findings; i++) {
        const Weft__Control__HostFinding *finding = health->findings[i];
        if (!control_name_ok(finding->subject, 1) || !text_ok(finding->text) || !text_ok(finding->advice))
            return false;
    }
    return true;
}

static bool progress_ok(const Weft__Control__Progress *progress)
{
    return !progress || (progress->waits_for <= WEFT_LIMIT_WORKERS && control_name_ok(progress->call, 0));
}

static bool declare_ok(const Weft__Control__Declare *declare)
{
    if (declare->ordinal >= WEFT_LIMIT_TENSORS || !control_name_ok(declare->name, 1)) return false;
    if (declare->dtype > WEFT_I64 || weft_dtype_bytes((enum weft_dtype)declare->dtype) == 0) return false;
    if (dims_elems(declare->n_dims, declare->dims) == 0) return false;
    if (!control_name_ok(declare->codec, 0) || !control_name_ok(declare->optimizer, 0)) return false;
    if (!control_name_ok(declare->consistency, 0)) return false;
    if (declare->pull_dtype != 0 && !weft_dtype_is_half(declare->pull_dtype)) return false;
    if (declare->mode != WEFT_WIRE_MODE_SERVER && declare->mode != WEFT_WIRE_MODE_ALL_REDUCE) return false;
    return declare->chunk_bytes >= WEFT_LIMIT_CHUNK_BYTES_MIN &&
           declare->chunk_bytes <= WEFT_LIMIT_CHUNK_BYTES;
}

/* Elements that the chunks cover so far: those of `candidate`, in order. */
struct coverage {
    uint64_t elems, end;
    uint32_t candidate;
};

/* Do `count` elements from `offset` continue the coverage, of the same candidate or of the next one? */
static bool continues(struct coverage *coverage, uint32_t candidate, uint64_t offset, uint64_t count)
{
    if (candidate != coverage->candidate) {
        if (candidate != ++coverage->candidate || candidate >= WEFT_LIMIT_CANDIDATES ||
            coverage->end != coverage->elems)
            return false;
        coverage->end = 0;
    }
    if (offset != coverage->end || count == 0 || count > coverage->elems - coverage->end) return false;
    coverage->end += count;
    return true;
}

/* The chunks must cover the tensor in order, without gaps. With codec "auto" the chunks of each further
 * candidate follow and cover it again. All-reduce tensors have no chunks. */
bool control_declared_ok(const Weft__Control__Declared *declared)
{
    const Weft__Control__Declare *declare = declared->declare;
    if (!declare || !declare_ok(declare) || declared->tensor != declare->ordinal) return false;
    if (declare->mode == WEFT_WIRE_MODE_ALL_REDUCE) return declared->n_chunks == 0 && declared->n_runs == 0;
    struct coverage coverage = {.elems = dims_elems(declare->n_dims, declare->dims)};
    size_t count = declared->n_chunks;
    if (declared->n_runs > 0 && declared->n_chunks > 0) return false;
    for (size_t i = 0; i < declared->n_chunks; i++) {
        const Weft__Control__Chunk *chunk = declared->chunks[i];
        if (chunk->endpoint >= WEFT_LIMIT_ENDPOINTS || chunk->slot >= WEFT_LIMIT_SLOTS ||
            !continues(&coverage, chunk->candidate, chunk->offset, chunk->count))
            return false;
    }
    for (size_t i = 0; i < declared->n_runs; i++) {
        const Weft__Control__ChunkRun *run = declared->runs[i];
        count += run->n_endpoints;
        if (!chunk_run_is_valid(run) ||
            !continues(&coverage, run->candidate, run->offset, run->end - run->offset))
            return false;
    }
    return count > 0 && count <= WEFT_LIMIT_CHUNKS && coverage.end == coverage.elems;
}

static bool codec_figures_ok(const Weft__Control__CodecFigures *codec)
{
    return !codec || (codec->n_encode_buckets <= WEFT_HISTOGRAM_BOUNDS + 1 &&
                      codec->n_decode_buckets <= WEFT_HISTOGRAM_BOUNDS + 1);
}

static bool heartbeat_ok(const Weft__Control__Heartbeat *heartbeat)
{
    const Weft__Control__Report *report = heartbeat->report;
    if (!text_ok(heartbeat->text) || !progress_ok(heartbeat->progress)) return false;
    return !report ||
           (text_ok(report->open) && report->n_step_buckets <= WEFT_HISTOGRAM_BOUNDS + 1 &&
            report->n_exposed_buckets <= WEFT_HISTOGRAM_BOUNDS + 1 &&
            report->n_failover_buckets <= WEFT_HISTOGRAM_BOUNDS + 1 && codec_figures_ok(report->codec));
}

static bool weight_hash_ok(const Weft__Control__WeightHash *hash)
{
    return hash->tensor < WEFT_LIMIT_TENSORS && hash->worker < WEFT_LIMIT_WORKERS &&
           hash->home <= WEFT_LIMIT_ENDPOINTS;
}

bool control_shrunk_ok(const Weft__Control__Shrunk *shrunk)
{
    if (shrunk->epoch == 0 || shrunk->n_members == 0 || shrunk->n_members > WEFT_LIMIT_WORKERS ||
        shrunk->n_newcomers > shrunk->n_members)
        return false;
    for (size_t i = 0; i < shrunk->n_newcomers; i++)
        if (!control_member_ok(shrunk->newcomers[i])) return false;
    return true;
}

/* Slots by rising number, each with its leader and copies that differ from it. */
bool control_map_ok(const Weft__Control__Map *map)
{
    if (map->n_slots > WEFT_LIMIT_SLOTS || !text_ok(map->text)) return false;
    for (size_t i = 0; i < map->n_slots; i++) {
        const Weft__Control__Slot *slot = map->slots[i];
        if (slot->slot >= WEFT_LIMIT_SLOTS || (i > 0 && slot->slot <= map->slots[i - 1]->slot)) return false;
        if (slot->term == 0 || slot->term > WEFT_LIMIT_TERM) return false;
        if (slot->leader >= WEFT_LIMIT_ENDPOINTS || slot->n_copies > WEFT_LIMIT_COPIES) return false;
        for (size_t c = 0; c < slot->n_copies; c++)
            if (slot->copies[c] >= WEFT_LIMIT_ENDPOINTS || slot->copies[c] == slot->leader) return false;
    }
    return true;
}

static bool slot_ok(uint32_t slot, uint32_t term)
{
    return slot < WEFT_LIMIT_SLOTS && term > 0 && term <= WEFT_LIMIT_TERM;
}

static bool rebalance_ok(const Weft__Control__Rebalance *rebalance)
{
    if (rebalance->n_moves > WEFT_LIMIT_SLOTS || rebalance->n_speeds > WEFT_LIMIT_SHARDS) return false;
    for (size_t i = 0; i < rebalance->n_moves; i++)
        if (rebalance->moves[i]->slot >= WEFT_LIMIT_SLOTS || rebalance->moves[i]->from >= WEFT_LIMIT_SHARDS ||
            rebalance->moves[i]->to >= WEFT_LIMIT_SHARDS)
            return false;
    return text_ok(rebalance->text);
}

static bool slot_copied_ok(const Weft__Control__SlotCopied *copied)
{
    return slot_ok(copied->slot, copied->term) && copied->to < WEFT_LIMIT_ENDPOINTS && copied->status <= 0 &&
           copied->status >= -99;
}

static bool snap_range_ok(const Weft__Control__SnapRange *range)
{
    return range->tensor < WEFT_LIMIT_TENSORS && range->part < WEFT_LIMIT_SNAP_PARTS &&
           range->offset < WEFT_LIMIT_TENSOR_ELEMS && range->count > 0 &&
           range->count <= WEFT_LIMIT_TENSOR_ELEMS - range->offset;
}

static bool snap_piece_ok(const Weft__Control__SnapPiece *piece)
{
    const bool has_base = piece->base_name.len > 0;
    if (piece->name.len != WEFT_SNAP_NAME_BYTES ||
        (has_base && piece->base_name.len != WEFT_SNAP_NAME_BYTES) || has_base != (piece->chain > 0) ||
        piece->chain > WEFT_LIMIT_SNAP_CHAIN || piece->n_ranges == 0 ||
        piece->n_ranges > WEFT_LIMIT_SNAP_RANGES || piece->bytes > WEFT_LIMIT_SNAP_PIECE_BYTES ||
        piece->stored > 2 * WEFT_LIMIT_SNAP_PIECE_BYTES)
        return false;
    for (size_t i = 0; i < piece->n_ranges; i++)
        if (!snap_range_ok(piece->ranges[i])) return false;
    return true;
}

static bool snap_pieces_ok(const Weft__Control__SnapPieces *pieces)
{
    if (pieces->n_pieces > WEFT_LIMIT_SNAP_PIECES || !text_ok(pieces->error)) return false;
    for (size_t i = 0; i < pieces->n_pieces; i++)
        if (!snap_piece_ok(pieces->pieces[i])) return false;
    return true;
}

static bool snap_data_ok(uint64_t offset, const ProtobufCBinaryData *data)
{
    return data->len <= WEFT_LIMIT_SNAP_DATA_BYTES && offset <= WEFT_LIMIT_SNAP_PART_BYTES - data->len;
}

static bool snap_part_ok(const Weft__Control__SnapPart *part)
{
    return part->rank < WEFT_LIMIT_WORKERS && part->bytes <= WEFT_LIMIT_SNAP_PART_BYTES &&
           (part->bytes > 0) != (part->error[0] != 0) && text_ok(part->error);
}

/* Bytes inside the part: at least one, unless there is no part, or an error. */
static bool snap_fetched_ok(const Weft__Control__SnapFetched *fetched)
{
    const bool is_empty = fetched->bytes == 0 || fetched->error[0];
    if (fetched->rank >= WEFT_LIMIT_WORKERS || fetched->bytes > WEFT_LIMIT_SNAP_PART_BYTES ||
        !text_ok(fetched->error) || is_empty != (fetched->data.len == 0))
        return false;
    return is_empty || (snap_data_ok(fetched->offset, &fetched->data) &&
                        fetched->offset + fetched->data.len <= fetched->bytes);
}

static bool control_ok(const Control *message)
{
    switch (message->body_case) {
    case WEFT__CONTROL__CONTROL__BODY_CHALLENGE: return challenge_ok(message->challenge);
    case WEFT__CONTROL__CONTROL__BODY_HELLO: return hello_ok(message->hello);
    case WEFT__CONTROL__CONTROL__BODY_WELCOME: return welcome_ok(message->welcome);
    case WEFT__CONTROL__CONTROL__BODY_ENDPOINTS:
        return addresses_ok(message->endpoints->n_addresses, message->endpoints->addresses);
    case WEFT__CONTROL__CONTROL__BODY_ROSTER: return roster_ok(message->roster);
    case WEFT__CONTROL__CONTROL__BODY_READY: return control_cost_ok(message->ready->cost);
    case WEFT__CONTROL__CONTROL__BODY_GO:
        return control_cost_ok(message->go->cost) && message->go->parts <= WEFT_LIMIT_WORKERS;
    case WEFT__CONTROL__CONTROL__BODY_DECLARE: return declare_ok(message->declare);
    case WEFT__CONTROL__CONTROL__BODY_DECLARED: return control_declared_ok(message->declared);
    case WEFT__CONTROL__CONTROL__BODY_DECLARED_OK: return message->declared_ok->tensor < WEFT_LIMIT_TENSORS;
    case WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE: return message->tensor_free->tensor < WEFT_LIMIT_TENSORS;
    case WEFT__CONTROL__CONTROL__BODY_HEARTBEAT: return heartbeat_ok(message->heartbeat);
    case WEFT__CONTROL__CONTROL__BODY_MEMBER_LOST:
        return text_ok(message->member_lost->text) && message->member_lost->index < WEFT_LIMIT_WORKERS;
    case WEFT__CONTROL__CONTROL__BODY_ABORT:
        return message->abort->status < 0 && message->abort->status >= -99 && text_ok(message->abort->text) &&
               message->abort->rollback_step < UINT64_MAX / 2;
    case WEFT__CONTROL__CONTROL__BODY_LEAVE: return text_ok(message->leave->text);
    case WEFT__CONTROL__CONTROL__BODY_FINISHED: return text_ok(message->finished->text);
    case WEFT__CONTROL__CONTROL__BODY_WEIGHT_HASH: return weight_hash_ok(message->weight_hash);
    case WEFT__CONTROL__CONTROL__BODY_STATUS_REQUEST: return true;
    case WEFT__CONTROL__CONTROL__BODY_STATUS_REPLY:
        return message->status_reply->json &&
               strnlen(message->status_reply->json, WEFT_LIMIT_STATUS_BYTES + 1) <= WEFT_LIMIT_STATUS_BYTES;
    case WEFT__CONTROL__CONTROL__BODY_SHRINK: return message->shrink->epoch > 0;
    case WEFT__CONTROL__CONTROL__BODY_SHRUNK: return control_shrunk_ok(message->shrunk);
    case WEFT__CONTROL__CONTROL__BODY_JOIN: return true;
    case WEFT__CONTROL__CONTROL__BODY_GROW: return message->grow->epoch > 0 && text_ok(message->grow->text);
    case WEFT__CONTROL__CONTROL__BODY_JOINED:
        return message->joined->epoch > 0 && text_ok(message->joined->text);
    case WEFT__CONTROL__CONTROL__BODY_LEFT:
        return text_ok(message->left->text) && message->left->index < WEFT_LIMIT_WORKERS;
    case WEFT__CONTROL__CONTROL__BODY_MAP: return control_map_ok(message->map);
    case WEFT__CONTROL__CONTROL__BODY_RESUME:
        return message->resume->nonce.len == WEFT_NONCE_BYTES &&
               message->resume->proof.len == WEFT_PROOF_BYTES;
    case WEFT__CONTROL__CONTROL__BODY_RESUMED: return message->resumed->proof.len == WEFT_PROOF_BYTES;
    case WEFT__CONTROL__CONTROL__BODY_ACK: return true;
    case WEFT__CONTROL__CONTROL__BODY_CLOSE: return text_ok(message->close->text);
    case WEFT__CONTROL__CONTROL__BODY_SNAP:
    case WEFT__CONTROL__CONTROL__BODY_SNAP_ARMED:
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PASSED: return true;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PIECES: return snap_pieces_ok(message->snap_pieces);
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PART: return snap_part_ok(message->snap_part);
    case WEFT__CONTROL__CONTROL__BODY_SNAP_WANTED:
        return message->snap_wanted->offset <= WEFT_LIMIT_SNAP_PART_BYTES;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_DATA:
        return message->snap_data->data.len > 0 &&
               snap_data_ok(message->snap_data->offset, &message->snap_data->data);
    case WEFT__CONTROL__CONTROL__BODY_SNAP_FETCH:
        return message->snap_fetch->rank < WEFT_LIMIT_WORKERS &&
               message->snap_fetch->offset < WEFT_LIMIT_SNAP_PART_BYTES;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_FETCHED: return snap_fetched_ok(message->snap_fetched);
    case WEFT__CONTROL__CONTROL__BODY_SLOT_COPY:
        return slot_ok(message->slot_copy->slot, message->slot_copy->term) &&
               message->slot_copy->to < WEFT_LIMIT_ENDPOINTS;
    case WEFT__CONTROL__CONTROL__BODY_SLOT_COPIED: return slot_copied_ok(message->slot_copied);
    case WEFT__CONTROL__CONTROL__BODY_SLOT_QUIET:
        return slot_ok(message->slot_quiet->slot, message->slot_quiet->term);
    case WEFT__CONTROL__CONTROL__BODY_DRAIN:
        return message->drain->shard < WEFT_LIMIT_SHARDS && text_ok(message->drain->text);
    case WEFT__CONTROL__CONTROL__BODY_HOST_HEALTH: return host_health_ok(message->host_health);
    case WEFT__CONTROL__CONTROL__BODY_SHARD_ADDED:
        return message->shard_added->shard && control_member_ok(message->shard_added->shard) &&
               message->shard_added->shard->role == WEFT__CONTROL__ROLE__ROLE_SHARD;
    case WEFT__CONTROL__CONTROL__BODY_SHARD_KNOWN: return text_ok(message->shard_known->text);
    case WEFT__CONTROL__CONTROL__BODY_REBALANCE: return rebalance_ok(message->rebalance);
    case WEFT__CONTROL__CONTROL__BODY__NOT_SET:
    default: return false;
    }
}

/* ---- public functions ---- */

/* Texts are printed in logs and terminals: no peer may write escape sequences or newlines there. */
static void clean_text(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

static void clean_texts(Control *message)
{
    switch (message->body_case) {
    case WEFT__CONTROL__CONTROL__BODY_MEMBER_LOST: clean_text(message->member_lost->text); break;
    case WEFT__CONTROL__CONTROL__BODY_ABORT: clean_text(message->abort->text); break;
    case WEFT__CONTROL__CONTROL__BODY_LEAVE: clean_text(message->leave->text); break;
    case WEFT__CONTROL__CONTROL__BODY_FINISHED: clean_text(message->finished->text); break;
    case WEFT__CONTROL__CONTROL__BODY_JOINED: clean_text(message->joined->text); break;
    case WEFT__CONTROL__CONTROL__BODY_HEARTBEAT:
        clean_text(message->heartbeat->text);
        if (message->heartbeat->report) clean_text(message->heartbeat->report->open);
        break;
    case WEFT__CONTROL__CONTROL__BODY_GROW: clean_text(message->grow->text); break;
    case WEFT__CONTROL__CONTROL__BODY_LEFT: clean_text(message->left->text); break;
    case WEFT__CONTROL__CONTROL__BODY_MAP: clean_text(message->map->text); break;
    case WEFT__CONTROL__CONTROL__BODY_DRAIN: clean_text(message->drain->text); break;
    case WEFT__CONTROL__CONTROL__BODY_SHARD_KNOWN: clean_text(message->shard_known->text); break;
    case WEFT__CONTROL__CONTROL__BODY_REBALANCE: clean_text(message->rebalance->text); break;
    case WEFT__CONTROL__CONTROL__BODY_CLOSE: clean_text(message->close->text); break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PIECES: clean_text(message->snap_pieces->error); break;
    case WEFT__CONTROL__CONTROL__BODY_HOST_HEALTH:
        for (size_t i = 0; i < message->host_health->n_findings; i++) {
            clean_text(message->host_health->findings[i]->text);
            clean_text(message->host_health->findings[i]->advice);
        }
        break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PART: clean_text(message->snap_part->error); break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_FETCHED: clean_text(message->snap_fetched->error); break;
    default: break;
    }
}

enum weft_status weft_control_pack(struct weft_env *env, const Control *message, uint8_t **data_out,
                                   size_t *bytes_out)
{
    if (!control_ok(message))
        return weft_limit_note("a message between a process and the coordinator has a name longer than %u "
                               "bytes, with control characters, or another field out of range",
                               WEFT_LIMIT_NAME_BYTES);
    size_t bytes = weft__control__control__get_packed_size(message);
    if (bytes > WEFT_LIMIT_FRAME_BYTES)
        return weft_limit_note("a message to the coordinator has %zu bytes, at most %u are allowed", bytes,
                               WEFT_LIMIT_FRAME_BYTES);
    uint8_t *data = weft_alloc_bytes(env, bytes + WEFT_SEAL_BYTES);
    if (!data) return WEFT_ERR_NO_MEMORY;
    *bytes_out = weft__control__control__pack(message, data);
    *data_out = data;
    WEFT_ASSERT(*bytes_out == bytes);
    return WEFT_OK;
}

enum weft_status weft_control_unpack(struct weft_env *env, const uint8_t *data, size_t bytes,
                                     Control **message_out)
{
    if (bytes == 0 || bytes > WEFT_LIMIT_FRAME_BYTES) return WEFT_ERR_MALFORMED;
    struct control_memory memory;
    ProtobufCAllocator allocator = control_allocator(&memory, env, bytes);
    Control *message = weft__control__control__unpack(&allocator, bytes, data);
    if (!message) return WEFT_ERR_MALFORMED;
    if (!control_ok(message)) {
        weft__control__control__free_unpacked(message, &allocator);
        return WEFT_ERR_MALFORMED;
    }
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_DECLARED && message->declared->n_runs > 0) {
        memory.left_bytes = WEFT_LIMIT_CHUNKS * CHUNK_BYTES;
        if (!chunk_runs_expand(&allocator, message->declared)) {
            weft__control__control__free_unpacked(message, &allocator);
            return WEFT_ERR_MALFORMED;
        }
    }
    clean_texts(message);
    *message_out = message;
    return WEFT_OK;
}

void weft_control_free(struct weft_env *env, Control *message)
{
    if (!message) return;
    struct control_memory memory;
    ProtobufCAllocator allocator = control_allocator(&memory, env, 0);
    weft__control__control__free_unpacked(message, &allocator);
}

bool weft_control_is_refusal(struct weft_env *env, const uint8_t *data, size_t bytes)
{
    Control *message;
    if (weft_control_unpack(env, data, bytes, &message) != WEFT_OK) return false;
    const bool is_refusal = message->body_case == WEFT__CONTROL__CONTROL__BODY_ABORT;
    weft_control_free(env, message);
    return is_refusal;
}
