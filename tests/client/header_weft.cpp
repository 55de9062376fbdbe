// The public headers as C++: each alone is included first by one of these namespaces' users; all together here.
#include <weft/weft.h>
#include <weft/status.h>
#include <weft/types.h>

extern "C" int header_cpp_use(void)
{
    struct weft_options options;
    struct weft_request request = {};
    weft_options_init(&options);
    return static_cast<int>(weft_test(&request));
}
