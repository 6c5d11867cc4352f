/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Prefetches under the thread sanitizer: several of one checkpoint at once, each with consumers on
 * threads of their own, and one that asks what is done; some are freed at once; beside the
 * checkpoint's own (load.prefetch).
 */
#include <berth.h>
#include <berth/config.h>
#include <berth/prefetch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/race.h"

#define N_TENSORS 40
#define N_ELEMENTS 20000
#define N_PREFETCHES 3
#define N_CONSUMERS 3
#define N_ROUNDS 6

static char *path;
static berth_checkpoint *checkpoint;

struct player {
    berth_prefetch *prefetch;
    pthread_t threads[N_CONSUMERS + 1];
};

static void save(void)
{
    static float elements[N_ELEMENTS];

    for (int k = 0; k < N_ELEMENTS; k++)
        elements[k] = (float)k;
    save_float_tensors(path, N_TENSORS, elements, N_ELEMENTS, 0);
}

/* Goes through all tensors, in parts of them, and uses each. */
static void *consume(void *context)
{
    struct player *player = context;
    berth_error error;
    char name[16];

    for (int i = 0; i < N_TENSORS; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        const berth_tensor *tensor = berth_find_tensor(checkpoint, name, NULL);
        int status = i % 2 ? berth_prefetch_advance(player->prefetch, tensor, 0, -1, &error)
                           : berth_prefetch_advance(player->prefetch, tensor, 5000,
                                                    N_ELEMENTS - 5000, &error);
        expect(status == 0, error.message);
        const float *data = berth_tensor_data(checkpoint, tensor, &error);
        expect(data != NULL, error.message);
        expect(data[N_ELEMENTS - 1] == (float)(N_ELEMENTS - 1), "an element");
    }
    return NULL;
}

static void *ask(void *context)
{
    struct player *player = context;
    berth_prefetch_stats stats = {0};
    berth_error error;

    for (int i = 0; i < 50; i++) {
        berth_prefetch_get_stats(player->prefetch, &stats, NULL);
        expect(stats.n_passes_done <= stats.n_passes_begun, "more passes done than begun");
        expect(stats.n_passes_begun <= stats.n_passes, "more passes begun than planned");
        expect(stats.peak_ahead_nbytes <= stats.pass_nbytes, "more than a pass ahead");
        (void)usleep(100);
    }
    expect(berth_prefetch_advance(player->prefetch, NULL, 0, -1, &error) == 0, error.message);
    return NULL;
}

static void begin(struct player *player, const char *options, int round)
{
    const berth_selection what = {.pattern = round % 2 ? "t*" : NULL};
    berth_error error;

    expect(berth_config_patch(options, &error) == 0, error.message);
    expect(berth_prefetch_begin(checkpoint, &what, round % 3 == 2 ? BERTH_PREFETCH_SEQUENTIAL : 0,
                                NULL, &player->prefetch, &error) == 0,
           error.message);
    expect(berth_config_unpatch(&error) == 0, error.message);
    for (int i = 0; i < N_CONSUMERS + 1; i++) {
        void *(*function)(void *) = i == 0 ? ask : consume;
        expect(pthread_create(&player->threads[i], NULL, function, player) == 0, "no thread");
    }
}

static void end(struct player *player)
{
    for (int i = 0; i < N_CONSUMERS + 1; i++)
        (void)pthread_join(player->threads[i], NULL);
    berth_prefetch_free(player->prefetch);
}

/* One is freed while others go on. */
static void play(const char *options, int round)
{
    struct player players[N_PREFETCHES] = {0};
    berth_prefetch *short_lived;
    berth_error error;

    checkpoint =
        open_with_options(path, round % 2 ? "load.prefetch=populate load.prefetch_passes=5 "
                                            "load.prefetch_window_nbytes=16KiB"
                                          : "load.prefetch=off");
    for (int i = 0; i < N_PREFETCHES; i++)
        begin(&players[i], options, round);
    for (int i = 0; i < 5; i++) {
        expect(berth_prefetch_begin(checkpoint, NULL, 0, NULL, &short_lived, &error) == 0,
               error.message);
        berth_prefetch_free(short_lived);
    }
    for (int i = 0; i < N_PREFETCHES; i++)
        end(&players[i]);
    berth_close(checkpoint);
}

int main(void)
{
    static const char *const options[] = {
        "load.prefetch=populate load.prefetch_passes=7 load.prefetch_window_nbytes=8KiB",
        "load.prefetch=read load.prefetch_passes=3 load.prefetch_window_nbytes=16KiB io.threads=2",
        "load.prefetch=advise load.prefetch_passes=2 load.prefetch_window_nbytes=8KiB io.threads=4",
    };
    char *folder = test_folder_new();

    path = test_path(folder, "model.pt");
    save();
    for (int round = 0; round < N_ROUNDS; round++)
        play(options[round % 3], round);
    free(path);
    test_folder_remove(folder);
    return 0;
}
