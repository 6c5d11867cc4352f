/* SPDX-License-Identifier: BSD-3-Clause */
/* W8 under the thread sanitizer: many short tasks, failures from all workers, cancels, patches. */
#include <berth/config.h>

#include "io/thread_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/options.h"
#include "tests/support/race.h"

#define N_TASKS 2000

static unsigned char written[N_TASKS]; /* each by one task, read by the caller: no lock needed */
static int n_watches;

static int write_one(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    (void)context, (void)worker, (void)error;
    written[task] = 1;
    return 0;
}

static int fail_from(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    (void)worker;
    if (task >= *(const uint64_t *)context)
        return bth_fail(error, BERTH_E_CHECKSUM, NULL, task, "bad");
    return 0;
}

/* Reads and changes the configuration from all workers at once, as operations do. */
static int use_options(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    struct berth_config config;
    berth_option option;

    (void)context, (void)worker;
    if (berth_config_patch("io.threads=3", error) < 0 ||
        berth_config_set("io.chunk_nbytes", task % 2 ? "4096" : "8192", NULL, error) < 0 ||
        bth_config_copy_for_operation(NULL, &config, error) < 0 ||
        berth_config_describe(NULL, berth_config_name(task % 25), &option, error) < 0 ||
        berth_config_unpatch(error) < 0)
        return error->code;
    return config.io_threads == 3 ? 0 : BERTH_E_OPTION;
}

static int cancel_third(void *context)
{
    (void)context;
    return ++n_watches >= 3;
}

static int run_for_ever(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    (void)context, (void)task, (void)worker, (void)error;
    return 0;
}

int main(void)
{
    berth_error error;

    for (unsigned n_workers = 0; n_workers <= 8; n_workers++) {
        memset(written, 0, sizeof written);
        bth_error_clear(&error);
        expect(bth_pool_run(n_workers, N_TASKS, write_one, NULL, NULL, &error) == 0, "failed");
        for (size_t i = 0; i < N_TASKS; i++)
            expect(written[i] == 1, "a task was not done");

        uint64_t first = 100;
        expect(bth_pool_run(n_workers, N_TASKS, fail_from, NULL, &first, &error) ==
                   BERTH_E_CHECKSUM,
               "did not fail");
        expect(error.offset >= 100 && error.offset < 100 + 8, "not the first failure");

        bth_error_clear(&error);
        expect(bth_pool_run(n_workers, N_TASKS, use_options, NULL, NULL, &error) == 0,
               error.message);

        bth_error_clear(&error);
        n_watches = 0;
        expect(bth_pool_run(n_workers, UINT64_MAX, run_for_ever, cancel_third, NULL, &error) ==
                   BERTH_E_CANCELLED,
               "not cancelled");
    }
    return 0;
}
