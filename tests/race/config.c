/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Options under the thread sanitizer: eight threads patch, set, watch, read and register, while two
 * others save and load by what is in force.
 */
#include <berth.h>
#include <berth/config.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/race.h"

enum { N_CHANGERS = 8, N_ROUNDS = 200 };

static char path[] = "/tmp/berth-race-config-XXXXXX";
static atomic_int n_changes;
static atomic_bool is_over;

static void count_change(void *context, const berth_option *option)
{
    (void)context;
    if (option->value[0])
        atomic_fetch_add(&n_changes, 1);
}

static void register_section(int thread)
{
    const berth_option_row row = {.name = "interval",
                                  .type = "int",
                                  .maximum = 100,
                                  .initial = "1",
                                  .classes = BERTH_CLASS_SPEED};
    char section[16];
    berth_error error;

    (void)snprintf(section, sizeof section, "race%d", thread / 2); /* two threads for each */
    expect(berth_config_register(section, &row, 1, &error) == 0, error.message);
}

/* The thread's patch is its own, whatever the others set. */
static void change_in_patch(int own)
{
    const char text[] = {(char)('0' + own), '\0'};
    berth_option option;
    berth_error error;

    BERTH_WITH_CONFIG("io.threads=2 save.durability=none")
    {
        expect(berth_config_set("io.threads", text, NULL, &error) == 0, error.message);
        expect(berth_config_describe(NULL, "io.threads", &option, &error) == 0, error.message);
        expect(option.number == own, "another thread's value is in this thread's patch");
    }
}

static void read_all(void)
{
    berth_option option;
    berth_error error;
    berth_config *config = berth_config_new(&error);

    expect(config != NULL, error.message);
    for (size_t k = 0; berth_config_name(k); k++)
        expect(berth_config_describe(NULL, berth_config_name(k), &option, &error) == 0,
               error.message);
    expect(berth_config_describe(config, "io.threads", &option, &error) == 0, error.message);
    expect(berth_config_hash(config, BERTH_CLASS_ALL) != 0, "no hash");
    berth_config_free(config);
}

static void *change_often(void *context)
{
    static const char *const chunks[] = {"4096", "8192", "12288", "16384", "20480"};
    int thread = *(const int *)context;
    berth_error error;

    register_section(thread);
    for (int i = 0; i < N_ROUNDS; i++) {
        expect(berth_config_watch("io.chunk_nbytes", count_change, context, &error) == 0,
               error.message);
        expect(berth_config_set("io.chunk_nbytes", chunks[(i + thread) % 5], NULL, &error) == 0,
               error.message);
        change_in_patch(1 + thread % 4);
        if (i % 20 == 0)
            read_all();
        expect(berth_config_parse("load.check=data\n", NULL, &error) == 0, error.message);
        expect(berth_config_reset("load.check", &error) == 0, error.message);
        expect(berth_config_watch(NULL, NULL, context, &error) == 0, error.message);
    }
    return NULL;
}

static void *save_and_load(void *context)
{
    static const float elements[20000] = {1, 2, 3};
    float got[3];
    char own[80];
    berth_error error;

    (void)snprintf(own, sizeof own, "%s/%d", path, *(const int *)context);
    while (!atomic_load(&is_over)) {
        save_float_tensors(own, 1, elements, 20000, 20000);
        berth_checkpoint *checkpoint = open_with_options(own, "");
        expect(berth_tensor_read(checkpoint, berth_find_tensor(checkpoint, "t0", NULL), 0, 3, got,
                                 &error) == 0,
               error.message);
        expect(memcmp(got, elements, sizeof got) == 0, "elements");
        berth_close(checkpoint);
    }
    (void)unlink(own);
    return NULL;
}

int main(void)
{
    static int numbers[N_CHANGERS + 2];
    pthread_t threads[N_CHANGERS + 2];
    berth_error error;

    expect(mkdtemp(path) != NULL, "no folder");
    expect(berth_config_set("save.durability", "none", NULL, &error) == 0, error.message);
    for (int i = 0; i < N_CHANGERS + 2; i++) {
        numbers[i] = i;
        expect(pthread_create(&threads[i], NULL, i < N_CHANGERS ? change_often : save_and_load,
                              &numbers[i]) == 0,
               "no thread");
    }
    for (int i = 0; i < N_CHANGERS + 2; i++) {
        (void)pthread_join(threads[i], NULL);
        if (i == N_CHANGERS - 1)
            atomic_store(&is_over, true);
    }
    expect(atomic_load(&n_changes) > 0, "no watch was told of a change");
    (void)rmdir(path);
    return 0;
}
