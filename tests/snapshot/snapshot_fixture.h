/* snapshot_fixture.h - pieces and manifests for the tests of snapshot. */
#ifndef WEFT_TESTS_SNAPSHOT_FIXTURE_H
#define WEFT_TESTS_SNAPSHOT_FIXTURE_H

#include "snapshot/snapshot.h"

#define FIXTURE_COUNT 1000u /* elements of the tensor "layer" */

/* Values and one state of "layer" after `step`, as one piece. */
struct weft_piece *fixture_piece(uint64_t step);
/* Stores the piece, on the base unless that is 0, and a worker's part, and commits the snapshot of the step.
 * */
enum weft_status fixture_save(const char *folder, uint64_t step, uint64_t base_step,
                              struct weft_error *error);
/* The snapshot of the step is whole and has the bits of the step. */
bool fixture_is_whole(const char *folder, uint64_t step, struct weft_error *error);

#endif
