/* base.h - public header of the base module; every other module may include it. */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#include "base/weft_assert.h"
#include "base/completion.h"
#include "base/config/config.h"
#include "base/config/edit_distance.h"
#include "base/os/cpu_quota.h"
#include "base/env.h"
#include "base/event_ring.h"
#include "base/os/float_env.h"
#include "base/fnv.h"
#include "base/net/hmac.h"
#include "base/config/key_value.h"
#include "base/json_text.h"
#include "base/os/cpu_cache.h"
#include "base/os/library.h"
#include "base/os/system_limit.h"
#include "base/config/launcher.h"
#include "base/config/secret_file.h"
#include "base/list.h"
#include "base/little_endian.h"
#include "base/loop/loop.h"
#include "base/os/memory_kind.h"
#include "base/net/listen_policy.h"
#include "base/net/net.h"
#include "base/os/process_id.h"
#include "base/os/timestamp.h"
#include "base/os/thread.h"
#include "weft/status.h"
#include "weft/types.h"

#endif
