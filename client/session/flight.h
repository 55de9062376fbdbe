/* flight.h - files of the flight recorder (flight_dump.c), and the signal that asks for one
 * (flight_signal.c). */
#ifndef WEFT_CLIENT_SESSION_FLIGHT_H
#define WEFT_CLIENT_SESSION_FLIGHT_H

#include "base/base.h"

struct weft_session;

/* Writes the flight record into recorder.directory, if that is set. `why` is stored in the file. If the
 * directory or disk refuses, one line is logged. Any thread. */
void client_flight_dump(struct weft_session *session, const char *why);
/* into recorder.calls, at the end of the session */
void client_flight_dump_calls(struct weft_session *session);
/* recorder.signal: installs its handler and a poll on the net thread. Before the net thread starts. */
enum weft_status client_flight_signal_start(struct weft_session *session, struct weft_error *error);

#endif
