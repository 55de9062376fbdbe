/* control_member.h - what a member sends over a control client while its job begins. */
#ifndef WEFT_TESTS_COORDINATOR_CONTROL_MEMBER_H
#define WEFT_TESTS_COORDINATOR_CONTROL_MEMBER_H

#include "server/server.h"

/* The member's addresses: one endpoint. */
enum weft_status control_member_send_endpoints(struct weft_control_client *client);
/* The reply to a Roster. */
enum weft_status control_member_send_ready(struct weft_control_client *client,
                                           const Weft__Control__Roster *roster);

#endif
