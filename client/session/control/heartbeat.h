/* heartbeat.h - heartbeats of this worker to the coordinator. Net thread; context: the session. */
#ifndef WEFT_CLIENT_SESSION_CONTROL_HEARTBEAT_H
#define WEFT_CLIENT_SESSION_CONTROL_HEARTBEAT_H

#include <stdint.h>

struct weft_session;

/* Sends a heartbeat. answer: the number of the coordinator's liveness check; 0: none. */
void client_heartbeat_send(struct weft_session *session, uint32_t answer);
/* Timer: ends the session if the coordinator is silent, else sends a heartbeat. */
void client_heartbeat_periodic(void *context);
/* Timer: begin and end of a stall are reported at once; otherwise nothing is sent. */
void client_heartbeat_check_progress(void *context);
/* Timer: lets the engine collect the figures of this rank (client_control_send_report). */
void client_heartbeat_request_report(void *context);
/* The coordinator's answer to client_control_wait_reason. */
void client_heartbeat_wait_reason(struct weft_session *session, const char *text);

#endif
