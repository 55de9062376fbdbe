/* watch.h - follows the status of a running job until an operator's request is done. */
#ifndef WEFT_TOOLS_FLEET_WATCH_H
#define WEFT_TOOLS_FLEET_WATCH_H

#include <jansson.h>

#include "tools/target.h"

struct fleet_watch {
    const char *command; /* "weft drain", for sentences */
    struct tool_target target;
    uint64_t wait_s; /* longest wait; 0: none */
    bool json;
};
#define FLEET_WATCH_OPTIONS(watch)                                                                      \
    TOOL_TARGET_OPTIONS(&(watch)->target), {"coordinator",      'c',                                    \
                                            "HOST:PORT",        "coordinator of the job",               \
                                            "WEFT_COORDINATOR", CLI_TEXT(&(watch)->target.address)},    \
        {"wait", 0, "SECONDS", "longest wait for the end; 0: return when the coordinator has accepted", \
         CLI_U64(&(watch)->wait_s, 0, 1000000)},                                                        \
    {                                                                                                   \
        "json", 0, NULL, "one JSON object in place of a sentence", CLI_FLAG(&(watch)->json)             \
    }
void fleet_watch_init(struct fleet_watch *watch, const char *command);

/* The status of the job, owned by the caller. NULL: the sentence is on stderr. */
json_t *fleet_status(const struct fleet_watch *watch);
/* Sends the request. true: it is accepted; else the sentence is on stderr, with `what` ("shard 2 cannot
 * leave") before the reason. */
bool fleet_request(const struct fleet_watch *watch, const Weft__Control__Control *request, const char *what);

/* Whether one status of the job shows the end. Writes how much of `total` is done. */
enum fleet_progress { FLEET_CONTINUES, FLEET_DONE, FLEET_FAILED };
typedef enum fleet_progress fleet_check(void *context, const json_t *status, uint64_t *done_out,
                                        uint64_t *total_out);
/* Reads the status twice a second until the end, with a bar on a terminal. label: of the bar; unit: NULL:
 * bytes. `late`: what continues after the wait, for its sentence. Returns the exit status; the sentence of an
 * error is on stderr. */
int fleet_follow(const struct fleet_watch *watch, const char *label, const char *unit, fleet_check *check,
                 void *context, const char *late);

#endif
