/* elastic.c - see elastic.h: state of the folder, and what the session calls in it. */
#include "client/elastic/elastic.h"

#include "client/session/session.h"

void client_elastic_init(struct weft_session *session, struct client_elastic *elastic)
{
    session->elastic = elastic;
    session->ops.epoch_ends = client_leave_epoch;
    session->ops.newcomer_waits = client_newcomer_announced;
    session->ops.deliver = client_step_deliver;
}

void client_elastic_free(struct weft_session *session)
{
    weft_free_bytes(session->env, session->elastic->compare.mine);
}
