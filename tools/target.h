/* target.h - the running job that a command queries: its coordinator, name and secret, and its status. */
#ifndef WEFT_TOOLS_TARGET_H
#define WEFT_TOOLS_TARGET_H

#include <jansson.h>

#include "server/server.h"
#include "tools/cli.h"

struct tool_target {
    struct weft_control_client_options options; /* host, job and secret point into this struct */
    const char *secret_file, *address;          /* address: HOST:PORT; NULL: none given */
    char *secret, *store;                       /* owned; store: server.store; NULL: none */
    char host[256];
    uint64_t seconds; /* longest wait for an answer */
};

/* Reads WEFT_COORDINATOR and WEFT_JOB. */
void tool_target_init(struct tool_target *target);
/* The rows of a command's option table. */
#define TOOL_TARGET_OPTIONS(target)                                                                         \
    {"job", 'j', "NAME", "name of the job", "WEFT_JOB, then weft", CLI_TEXT(&(target)->options.job)},       \
        {"secret-file",                                                                                     \
         0,                                                                                                 \
         "FILE",                                                                                            \
         "file with the secret of the job",                                                                 \
         "WEFT_SECRET, then WEFT_SECRET_FILE",                                                              \
         CLI_TEXT(&(target)->secret_file)},                                                                 \
    {                                                                                                       \
        "timeout", 0, "SECONDS", "longest wait for the answer", CLI_U64(&(target)->seconds, 1, 3600)        \
    }
/* Takes HOST:PORT from the arguments, and reads the secret and server.store. Without HOST:PORT the store has
 * the address. -1: ready; otherwise the exit status, and the sentence is on stderr. */
int tool_target_resolve(const char *command, struct tool_target *target, int argc, char **argv, int first);
void tool_target_free(struct tool_target *target);

/* Joins the coordinator as an observer, sends one request, leaves. If the coordinator does not answer, and
 * server.store names another one, that one is tried: within `seconds`, since a take-over may be under way.
 * Returns the text of the answer: of a StatusRequest the JSON, of Drain and Rebalance "" or the reason of the
 * refusal; of Rebalance with `plan` the plan as JSON, {"speeds": [...], "moves": [{slot, from, to, leads,
 * bytes}]}, or the reason. NULL: *error has the sentence. Free with free(). (target_status.c) */
char *tool_target_request(const struct tool_target *target, const Weft__Control__Control *request,
                          struct weft_error *error);
/* The same for the status. */
char *tool_target_status(const struct tool_target *target, struct weft_error *error);
/* The same, and sends a message before the query: with the answer the coordinator has it. */
char *tool_target_send(const struct tool_target *target, const Weft__Control__Control *message,
                       struct weft_error *error);

/* Values of a status; "?" and 0 if the key is missing. */
const char *tool_json_text(const json_t *object, const char *key);
long long tool_json_number(const json_t *object, const char *key);

#endif
