/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/more.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "adapters/curl/url.h"

/* Ranges of files above 2 GiB, CURLINFO_RETRY_AFTER. */
#define OLDEST_VERSION 0x074200u /* 7.66.0 */
/* It signs headers of ours, such as the token; earlier ones are not tested. */
#define OLDEST_SIGNING_VERSION 0x075800u /* 7.88.0 */

bcurl_functions bcurl;

static berth_error why_not; /* code 0: libcurl is there */

int bcurl_fail(berth_error *error, berth_status status, int system_errno, const char *format, ...)
{
    va_list arguments;

    if (!error)
        return status;
    memset(error, 0, sizeof *error);
    error->code = status;
    error->system_errno = system_errno;
    error->offset = BERTH_NO_OFFSET;
    char text[sizeof error->message]; /* a server, or a name, must not move a terminal's cursor */
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)berth_show_text(text, strlen(text), BERTH_TEXT_PLAIN, error->message,
                          sizeof error->message);
    return status;
}

int bcurl_name_error(berth_error *error, const char *name)
{
    char message[401], shown[201];

    (void)berth_show_text(error->message, strlen(error->message), BERTH_TEXT_PLAIN, message,
                          sizeof message);
    bool is_cut =
        berth_show_text(name, strlen(name), BERTH_TEXT_PLAIN, shown, sizeof shown) >= sizeof shown;
    (void)snprintf(error->message, sizeof error->message, "%s%s: %s", shown, is_cut ? "..." : "",
                   message);
    return error->code;
}

static bool functions_find(void *library)
{
    const struct {
        const char *name;
        void *place;
    } all[] = {
        {"curl_easy_init", &bcurl.easy_init},
        {"curl_easy_setopt", &bcurl.easy_setopt},
        {"curl_easy_perform", &bcurl.easy_perform},
        {"curl_easy_getinfo", &bcurl.easy_getinfo},
        {"curl_easy_cleanup", &bcurl.easy_cleanup},
        {"curl_easy_strerror", &bcurl.easy_strerror},
        {"curl_share_init", &bcurl.share_init},
        {"curl_share_setopt", &bcurl.share_setopt},
        {"curl_share_cleanup", &bcurl.share_cleanup},
        {"curl_slist_append", &bcurl.slist_append},
        {"curl_slist_free_all", &bcurl.slist_free_all},
        {"curl_global_init", &bcurl.global_init},
        {"curl_version_info", &bcurl.version_info},
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *found = dlsym(library, all[i].name);
        if (!found)
            return false;
        memcpy(all[i].place, &found, sizeof found);
    }
    return true;
}

/* It stays open: its threads and sessions may be used until the process ends. */
static void open_library(void)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    void *library = NULL;

    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        (void)bcurl_fail(
            &why_not, BERTH_E_UNAVAILABLE, 0,
            "URLs are read by libcurl, which is not installed: apt-get install libcurl4");
    else if (!functions_find(library) || bcurl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        (void)bcurl_fail(&why_not, BERTH_E_UNAVAILABLE, 0, "this machine's libcurl cannot be used");
    else if (bcurl.version_info(CURLVERSION_NOW)->version_num < OLDEST_VERSION)
        (void)bcurl_fail(&why_not, BERTH_E_UNAVAILABLE, 0,
                         "libcurl 7.66 or later is needed, this is %s",
                         bcurl.version_info(CURLVERSION_NOW)->version);
}

int bcurl_need_library(berth_error *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, open_library);
    if (why_not.code != BERTH_OK && error)
        *error = why_not;
    return why_not.code;
}

bool bcurl_can_sign(void)
{
    return bcurl.version_info(CURLVERSION_NOW)->version_num >= OLDEST_SIGNING_VERSION;
}
