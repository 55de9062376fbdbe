/* base.h - the face of the base room: what every other room may include. */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#include "base/weft_assert.h"
#include "base/completion.h"
#include "base/config.h"
#include "base/cpu_quota.h"
#include "base/env.h"
#include "base/event_ring.h"
#include "base/float_env.h"
#include "base/fnv.h"
#include "base/hmac.h"
#include "base/json_text.h"
#include "base/last_cache.h"
#include "base/library.h"
#include "base/limit.h"
#include "base/launcher.h"
#include "base/list.h"
#include "base/little_endian.h"
#include "base/loop.h"
#include "base/memory_kind.h"
#include "base/net.h"
#include "base/process_id.h"
#include "base/stamp.h"
#include "base/thread.h"
#include "weft/status.h"
#include "weft/types.h"

#endif
