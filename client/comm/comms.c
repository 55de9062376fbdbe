/* comms.c - see comms.h: state of the folder, and what the engine calls in it. */
#include "client/comm/comms.h"

#include "client/comm/comm.h"
#include "client/comm/creation.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/session/session.h"

void client_comms_init(struct weft_session *session, struct client_comms *comms)
{
    static const struct client_engine_comm_ops ops = {
        .listen = client_creations_listen,
        .leave = client_comms_leave,
        .send_leave = client_comms_send_leave,
        .have_left = client_comms_have_left,
        .record = client_comms_record,
    };
    session->comms = comms;
    session->engine->ops.comm = &ops;
    weft_list_init(&comms->list);
    weft_list_init(&comms->meshes);
    weft_list_init(&comms->creations);
    weft_list_init(&comms->announcements);
    comms->next_group_id = CLIENT_GROUP_ID + 1;
}

void client_comms_close(struct weft_session *session)
{
    client_meshes_free(session);
    client_comms_free(session);
    client_creations_free(session);
    weft_free_bytes(session->env, session->comms->exchange.all);
    weft_free_bytes(session->env, session->comms->leave_check);
}
