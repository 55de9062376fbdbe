/* control_member.c - see control_member.h. */
#include "tests/coordinator/control_member.h"

enum weft_status control_member_send_endpoints(struct weft_control_client *client)
{
    ProtobufCBinaryData address = {4, (uint8_t *)"addr"};
    Weft__Control__Endpoints endpoints = WEFT__CONTROL__ENDPOINTS__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    endpoints.n_addresses = 1;
    endpoints.addresses = &address;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_ENDPOINTS;
    message.endpoints = &endpoints;
    return weft_control_client_send(client, &message);
}

enum weft_status control_member_send_ready(struct weft_control_client *client,
                                           const Weft__Control__Roster *roster)
{
    Weft__Control__Ready ready = WEFT__CONTROL__READY__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    ready.epoch = roster->epoch;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_READY;
    message.ready = &ready;
    return weft_control_client_send(client, &message);
}
