/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Repacked files (Z13): they say that their offsets can be calculated, but their directory differs
 * from the layout. The directory decides, if all headers agree with it.
 */
#include "base/error.h"
#include "format/zip/zip.h"
#include "load/open/open_steps.h"
#include "load/open/refusal.h"

bool bth_opening_may_be_repacked(bth_opening *opening, const berth_error *error)
{
    bth_container *container = &opening->contents->container;
    const uint8_t *directory;
    berth_error ignored;

    if (error->code != BERTH_E_TRUNCATED || container->known)
        return error->code == BERTH_E_OFFSETS;
    bth_error_clear(&ignored);
    return bth_container_read_directory_bytes(container, &opening->cache, BTH_ZIP_TAIL_NBYTES,
                                              &directory, &ignored) == 0;
}

int bth_opening_check_all_headers(bth_opening *opening, berth_error *error)
{
    bth_container *container = &opening->contents->container;

    if (bth_container_check_headers_from(container, &opening->cache, 0, true, error) < 0)
        return error->code;
    return bth_zip_check_no_gaps(&container->directory, &container->end, 0, 0, error);
}

/*
 * load.calculate_storage_offsets=off: only the directory counts. Debug mode logs how the layout
 * differs.
 */
static int contents_note_difference(bth_opening *opening, berth_error *error)
{
    bth_contents *contents = opening->contents;

    contents->repacked = bth_layout_check_directory(contents, error) == BERTH_E_OFFSETS;
    if (error->code == BERTH_E_MEMORY)
        return error->code;
    bth_error_clear(error);
    if (!opening->config->debug || contents->has_longer_record ||
        bth_layout_check(contents, error) == 0 || error->code == BERTH_E_MEMORY)
        return error->code;
    bth_log("%s: %s", opening->cache.reader->name, error->message);
    bth_error_clear(error);
    return 0;
}

static int contents_refuse_repacked(const bth_opening *opening, berth_error *error)
{
    static const bth_step mends = {"berth convert --set debug=off --set load.repacked=accept ",
                                   " NEW.pt", "mends it",
                                   "debug=off and load.repacked=accept read it", false};

    *error = opening->difference;
    (void)bth_error_append(error, "; the file was repacked, which debug mode and "
                                  "load.repacked=refuse refuse");
    return bth_error_append_step(error, ": ", &mends, opening->cache.reader);
}

/*
 * Z13: the directory differs from the layout: the file was repacked. It has one reading if every
 * local header and descriptor agrees with the directory.
 */
static int contents_accept_repacked(bth_opening *opening, berth_error *error)
{
    const struct berth_config *config = opening->config;

    if (opening->difference.code == 0)
        opening->difference = *error;
    bth_error_clear(error);
    opening->contents->repacked = true;
    if ((opening->looks_repacked || bth_opening_check_all_headers(opening, error) == 0) &&
        (config->debug || config->load_repacked == BTH_REPACKED_REFUSE))
        return contents_refuse_repacked(opening, error);
    return error->code;
}

int bth_opening_check_directory_follows_layout(bth_opening *opening, berth_error *error)
{
    const bth_contents *contents = opening->contents;

    if (contents->format_version < 1)
        return 0;
    if (!opening->config->load_calculate_storage_offsets)
        return contents_note_difference(opening, error);
    if (bth_layout_check_directory(contents, error) == BERTH_E_OFFSETS)
        return contents_accept_repacked(opening, error);
    if (opening->difference.code < 0)
        *error = opening->difference;
    if (error->code < 0 || opening->config->load_check < BTH_CHECK_DIRECTORY)
        return error->code;
    return bth_layout_check(contents, error);
}
