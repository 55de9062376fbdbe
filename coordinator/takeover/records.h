/* records.h - the coordinator's state in the store: written before it is announced, read by the next one.
 *
 *     change of state -> coordinator_records_...  (marks)
 *     send -> commit (writes what is marked) -> socket
 *
 *     job          numbers of the job, that it runs, that it has ended
 *     member/N     each member: identity, addresses, session key, whether it has left or is lost
 *     shrunk       elastic jobs: the membership in force, after the first one (records_membership.c)
 *     slots        leader, copy and term of each slot
 *     tensor/N     declarations that all workers agree on, with placement
 *     snapshots    interval; number and step of the snapshot under way; step of the last complete one
 *
 * A declaration that some workers have sent is not written: each member keeps its own until the answer
 * (coordinator/control_link.h). Before the job runs only the record "job" is written: another coordinator
 * begins the job again, and its members join again (begin_again.c). Internal to the coordinator. */
#ifndef WEFT_COORDINATOR_TAKEOVER_RECORDS_H
#define WEFT_COORDINATOR_TAKEOVER_RECORDS_H

#include "coordinator/coordinator_state.h"

/* Marks; no effect in a job without a store. */
void coordinator_records_begin(struct weft_coordinator *coordinator); /* the job begins to run: all */
/* Writes that the job has not begun. Call once, with the reign, before a member joins. Returns as commit. */
bool coordinator_records_wait(struct weft_coordinator *coordinator);
/* A shard joins, and the next endpoint and incarnation are used. */
void coordinator_records_numbers(struct weft_coordinator *coordinator, struct coordinator_member *shard);
void coordinator_records_slots(struct coordinator_records *records);
void coordinator_records_member(struct weft_coordinator *coordinator, struct coordinator_member *member);
void coordinator_records_tensor(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor);
void coordinator_records_snapshots(struct weft_coordinator *coordinator);
void coordinator_records_job(struct weft_coordinator *coordinator);
/* Records the membership in force. before: epoch of the membership that it replaces. */
void coordinator_records_shrunk(struct weft_coordinator *coordinator, const Weft__Control__Shrunk *shrunk,
                                uint32_t before);
/* Writes what is marked. false: this process does not coordinate any more, and must announce nothing. Always
 * true without a store. */
bool coordinator_records_commit(struct weft_coordinator *coordinator);
/* Returns whether another process coordinates, or may coordinate. */
bool coordinator_records_is_fenced(struct weft_coordinator *coordinator);
/* Writes the record of a job that has not begun, with the numbers of coordinator->rollback. Later changes are
 * not written. Returns as commit. */
bool coordinator_records_begin_again(struct weft_coordinator *coordinator);
/* Writes that the job ends. Returns as commit. */
bool coordinator_records_end(struct weft_coordinator *coordinator);

/* All records of a job. */
struct coordinator_loaded {
    struct weft_env *env;
    enum weft_status status;
    Weft__Control__Stored *job, *slots, **members, **tensors; /* owned; job NULL: it has not begun */
    Weft__Control__Stored *snapshots, *shrunk;                /* owned; NULL: a job without */
    uint32_t member_count, tensor_count;
};
enum weft_status coordinator_records_load(struct coordinator_reign *reign,
                                          struct coordinator_loaded *loaded_out);
void coordinator_loaded_free(struct coordinator_loaded *loaded);
/* Sets the options of a coordinator that continues the job from its records. */
void coordinator_loaded_options(const struct coordinator_loaded *loaded,
                                struct weft_coordinator_options *options);
/* Fills in a new coordinator, whose options are those of the record of the job. It is running then, and no
 * member has a connection. WEFT_ERR_MALFORMED: the records do not fit each other. */
enum weft_status coordinator_records_restore(struct weft_coordinator *coordinator,
                                             const struct coordinator_loaded *loaded);

/* records_membership.c */
/* Restores rank and state of each worker from its record. Call after all members are restored.
 * WEFT_ERR_MALFORMED: the records of the membership do not fit each other. */
enum weft_status coordinator_membership_restore(struct weft_coordinator *coordinator,
                                                const struct coordinator_loaded *loaded);
/* Call once, when members can resume. Workers without Go are lost. Proposes an epoch for ranks that were lost
 * without one. */
void coordinator_membership_check(struct weft_coordinator *coordinator);
/* Sends Shrunk of the membership in force if the member has an older one (epoch), then the proposal of the
 * next epoch, if there is one. */
void coordinator_membership_repeat(struct weft_coordinator *coordinator, struct coordinator_member *member,
                                   uint32_t epoch);

#endif
