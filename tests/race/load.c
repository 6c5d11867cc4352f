/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many threads with one checkpoint, under the thread sanitizer: names and memory are made once,
 * whoever asks first; reading, summing and saving again go on beside it.
 */
#include <berth.h>
#include <berth/config.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/race.h"

#define N_TENSORS 24
#define N_ELEMENTS 40000
#define N_THREADS 6

static float elements[N_TENSORS][N_ELEMENTS];
static char *path;

static void save(void)
{
    for (int i = 0; i < N_TENSORS; i++)
        for (int k = 0; k < N_ELEMENTS; k++)
            elements[i][k] = (float)(i + k);
    save_float_tensors(path, N_TENSORS, elements[0], N_ELEMENTS, N_ELEMENTS);
}

/* Every thread asks for every tensor, each beginning with another. */
static void *ask(void *context)
{
    static _Atomic int next;
    berth_checkpoint *checkpoint = context;
    int first = next++ * 5;
    float got[100];
    char name[16];
    berth_error error;

    for (int n = 0; n < N_TENSORS; n++) {
        int i = (first + n) % N_TENSORS;
        (void)snprintf(name, sizeof name, "t%d", i);
        const berth_tensor *tensor = berth_find_tensor(checkpoint, name, NULL);
        expect(tensor != NULL, name);
        expect(berth_tensor_read(checkpoint, tensor, 100, 100, got, &error) == 0, error.message);
        expect(memcmp(got, elements[i] + 100, sizeof got) == 0, "elements read");
        const float *data = berth_tensor_data(checkpoint, tensor, &error);
        expect(data != NULL, error.message);
        expect(memcmp(data, elements[i], sizeof elements[i]) == 0, "elements at hand");
    }
    return NULL;
}

static void *save_again(void *context)
{
    berth_checkpoint *checkpoint = context;
    void *bytes;
    size_t nbytes;
    berth_error error;

    expect(berth_save_to(TO_MEMORY(&bytes, &nbytes), OF_VALUE(berth_root(checkpoint)), NULL,
                         &error) == 0,
           error.message);
    berth_free(bytes);
    return NULL;
}

/* All at once, or some, beside those who ask for one at a time: each is brought once. */
static void *fetch(void *context)
{
    static _Atomic int next;
    static const char *const patterns[] = {NULL, "t1*", "t[0-7]"};
    static const berth_storage_rule rules[] = {{.pattern = "t2*", .method = BERTH_LOAD_READ},
                                               {.pattern = "t1?", .method = BERTH_LOAD_DIRECT}};
    berth_checkpoint *checkpoint = context;
    berth_selection selection = {.pattern = patterns[next++ % 3]};
    berth_storage_stats told;
    berth_stats stats;
    berth_params call = {.stats = &stats};
    berth_error error;

    expect(berth_set_storage_rules(checkpoint, rules, 2, &error) == 0, error.message);
    expect(berth_load(checkpoint, &selection, &call, &error) == 0, error.message);
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "t1", NULL);
    expect(berth_storage_get_stats(checkpoint, tensor->storage, &told, &error) == 0, error.message);
    expect(strcmp(told.method, "none") != 0, "what was fetched has a method");
    return ask(context);
}

static void share(const char *options)
{
    static void *(*const roles[N_THREADS])(void *) = {ask, save_again, fetch, ask, fetch, fetch};
    berth_checkpoint *checkpoint = open_with_options(path, options);

    run_threads(N_THREADS, roles, checkpoint);
    berth_close(checkpoint);
}

/* ---- fetches that fail: who waits holds what has come already, and nobody waits for ever ---- */

struct failing {
    const uint8_t *bytes;
    _Atomic int n_failures; /* to come */
    _Atomic int n_failed, n_failing;
};

static int failing_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct failing *failing = context;

    if (failing->n_failures > 0 && failing->n_failures-- > 0) {
        failing->n_failing++;
        (void)usleep(500);
        failing->n_failed++;
        return 5;
    }
    memcpy(buffer, failing->bytes + offset, nbytes);
    return 0;
}

struct fetching {
    berth_checkpoint *checkpoint;
    struct failing *failing;
    const char *pattern;
    int n_failing, n_failed; /* begins when there are so many, */
    int n_steps;             /* and a little later */
};

static void *fetch_until_it_works(void *context)
{
    struct fetching *fetching = context;
    berth_selection selection = {.pattern = fetching->pattern};

    while (fetching->failing->n_failing < fetching->n_failing ||
           fetching->failing->n_failed < fetching->n_failed)
        ;
    for (volatile int i = 0; i < fetching->n_steps; i++)
        ;
    while (berth_load(fetching->checkpoint, &selection, NULL, NULL) < 0)
        ;
    return NULL;
}

/*
 * While the first fails the second holds the others and waits; the third comes when the first has
 * just given up, and wants both. Had it the first's, and did it wait for the second's, so they both
 * would for ever.
 */
static void fail_and_share(const uint8_t *bytes, size_t nbytes, int n_steps)
{
    struct failing failing = {.bytes = bytes};
    berth_source source = {.nbytes = nbytes, .read = failing_read, .context = &failing};
    berth_checkpoint *checkpoint;
    berth_error error;
    pthread_t threads[3];

    expect(berth_config_patch("io.threads=1", &error) == 0, error.message);
    expect(berth_open_source(&source, NULL, &checkpoint, &error) == 0, error.message);
    expect(berth_config_unpatch(&error) == 0, error.message);
    failing.n_failures = 1 + n_steps % 3;
    struct fetching fetchings[] = {
        {checkpoint, &failing, "t3", 0, 0, 0},
        {checkpoint, &failing, "t[35]", 1, 0, 0},
        {checkpoint, &failing, "t[35]", 1, 1, n_steps},
    };
    for (int i = 0; i < 3; i++)
        expect(pthread_create(&threads[i], NULL, fetch_until_it_works, &fetchings[i]) == 0,
               "no thread");
    for (int i = 0; i < 3; i++)
        (void)pthread_join(threads[i], NULL);
    const float *data =
        berth_tensor_data(checkpoint, berth_find_tensor(checkpoint, "t5", NULL), &error);
    expect(data && memcmp(data, elements[5], sizeof elements[5]) == 0, "elements fetched");
    berth_close(checkpoint);
}

static void fail_often(void)
{
    size_t nbytes;
    uint8_t *bytes = test_read_file(path, &nbytes);

    for (int i = 0; i < 100; i++)
        fail_and_share(bytes, nbytes, i * 100);
    free(bytes);
}

int main(void)
{
    char *folder = test_folder_new();
    berth_error error;

    path = test_path(folder, "model.pt");
    save();
    share("load.check=none");
    share("load.mmap=off io.chunk_nbytes=65536 io.threads=3");
    share("load.check=data io.threads=4 io.chunk_nbytes=65536");
    share("load.method=direct io.threads=2 io.chunk_nbytes=65536");
    fail_often();
    expect(berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, &error) == 0, error.message);
    free(path);
    test_folder_remove(folder);
    return 0;
}
