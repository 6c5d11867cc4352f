/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/config.h>

#include "tests/support/opened.h"
#include <criterion/criterion.h>

berth_checkpoint *checkpoint;
berth_error error;

void close_opened(void)
{
    berth_close(checkpoint);
    checkpoint = NULL;
}

const berth_params *only(const char *options, berth_stats *stats)
{
    static berth_config *config;
    static berth_params call;

    berth_config_free(config);
    config = berth_config_new(NULL);
    cr_assert_eq(berth_config_apply(config, "debug=off", NULL), 0);
    assert_ok(berth_config_apply(config, options, &error));
    call = (berth_params){.config = config, .stats = stats};
    return &call;
}

void open_as(const char *options)
{
    close_opened();
    patch(options);
    assert_ok(berth_open(path, NULL, &checkpoint, &error));
    cr_assert_eq(berth_config_unpatch(NULL), 0);
}

berth_stats fetched(const berth_selection *selection)
{
    berth_stats stats = {0};

    assert_ok(berth_load(checkpoint, selection, &(berth_params){.stats = &stats}, &error));
    return stats;
}

const berth_tensor *tensor_at(size_t i)
{
    berth_named_tensor named;
    berth_error failed; /* tests look at `error` after this */

    cr_assert_eq(berth_tensor_at(checkpoint, i, &named, &failed), 0, "%s", failed.message);
    return named.tensor;
}

berth_storage_stats stats_at(size_t i)
{
    berth_storage_stats stats;

    cr_assert_eq(berth_storage_get_stats(checkpoint, tensor_at(i)->storage, &stats, &error), 0);
    return stats;
}
