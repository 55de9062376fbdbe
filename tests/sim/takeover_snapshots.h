/* takeover_snapshots.h - snapshots in the jobs of sim_takeover_seeds.c: the folder, the death of the
 * coordinator between two files, the check of what is on disk. */
#ifndef WEFT_TESTS_SIM_TAKEOVER_SNAPSHOTS_H
#define WEFT_TESTS_SIM_TAKEOVER_SNAPSHOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

/* A new job: empties the folder. The process of `host` dies at its die_at-th call that stores a piece or
 * commits a manifest, before or behind it; 0: it does not. `dies` runs inside that call. */
void takeover_snapshots_begin(const char *folder, uint32_t host, uint32_t die_at, bool is_behind,
                              void (*dies)(void));
/* The process of the host does nothing any more. */
void takeover_snapshots_stop(void);
/* Each snapshot in the folder is whole, and its weights are those behind its step: value(step, index) for all
 * `count` elements of tensor "weights". *committed_out: manifests that other hosts than `host` have
 * committed. false: why_out. */
bool takeover_snapshots_check(struct weft_env *env, float (*value)(uint64_t step, uint32_t index),
                              uint32_t count, uint64_t *committed_out, char *why_out, size_t why_bytes);
void takeover_snapshots_clear(const char *folder); /* removes its files */

#endif
