/* events.c - the flight recorder, written to a file. Works on a failed session too: that is what it is for. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/session.h"

enum weft_status weft_dump_events(struct weft_session *session, const char *path)
{
    static const char perfetto[] = ".perfetto.json";
    if (!session) return WEFT_ERR_INVALID;
    enum weft_status usable = client_usable(session);
    if (usable == WEFT_ERR_FORKED) return usable;
    if (!path || !path[0]) return client_error(session, WEFT_ERR_INVALID, "dump_events: path is empty");
    FILE *file = fopen(path, "we");
    if (!file) return client_error(session, WEFT_ERR_IO, "dump_events: cannot write %s: %s", path, strerror(errno));
    char engine[64];
    snprintf(engine, sizeof engine, "rank %u", session->rank);
    size_t length = strlen(path), tail = sizeof perfetto - 1;
    bool trace = length >= tail && strcmp(path + length - tail, perfetto) == 0;
    enum weft_status status = trace ? weft_event_ring_dump_perfetto(session->engine.events, engine, (int)session->pid, file)
                                    : weft_event_ring_dump_json(session->engine.events, engine, file);
    if (fclose(file) != 0 && status == WEFT_OK) status = WEFT_ERR_IO;
    if (status < 0) return client_error(session, status, "dump_events: cannot write %s: %s", path, strerror(errno));
    return WEFT_OK;
}
