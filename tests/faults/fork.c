/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * X11: forks at any moment beside threads that save, load, look up rows and set options. Each child
 * uses Berth anew and reads on through what its parent has open; what has threads is refused;
 * everything is freed. Nothing hangs (an alarm), nothing crashes, and the parent's saves are whole.
 */
#include <berth/config.h>
#include <berth/prefetch.h>
#include <berth/rows.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

#include "base/lock.h"
#include "tests/support/faults/save_scene.h"

enum { N_TENSORS = 24, N_COLUMNS = 16, CHILD_SECONDS = 30 };

/*
 * gcc 12's address sanitizer leaves locks of its own taken in children. There Berth's memory comes
 * from the kernel, fewer threads begin and end (in children none), and a child that hangs in the
 * sanitizer is told apart (SANITIZER_HANGS) from one that hangs in Berth.
 */
#ifdef __SANITIZE_ADDRESS__
#define IS_SANITIZED true
#define OTHERS_THREADS "io.threads=1"
#else
#define IS_SANITIZED false
#define OTHERS_THREADS "io.threads=2"
#endif
#define SANITIZER_HANGS 77
#define OTHERS_OPTIONS OTHERS_THREADS " io.chunk_nbytes=65536 save.durability=none"
#define REFUSED(what)                                                                              \
    "this " what                                                                                   \
    " belongs to the parent process, whose threads do not exist here: make a new one "             \
    "in this process"

static float *elements;
static int64_t shapes[N_TENSORS][2];
static char names[N_TENSORS][16];

/* What a round's child inherits. */
static berth_checkpoint *shared;
static berth_archive *archive;
static berth_rows *rows;
static berth_ticket kept_ticket;
static berth_job *job;
static berth_prefetch *prefetch;
static const char *const ways[] = {"load.method=read", "load.method=map load.check=data",
                                   "load.method=read load.check=none load.mmap=off",
                                   "load.method=direct load.prefetch=read"};

static void *reallocate(void *unused, void *pointer, size_t nbytes)
{
    enum { HEAD_NBYTES = 64 };
    size_t *head = pointer ? (size_t *)(void *)((uint8_t *)pointer - HEAD_NBYTES) : NULL;
    uint8_t *made = NULL;

    (void)unused;
    if (nbytes > 0) {
        made = mmap(NULL, nbytes + HEAD_NBYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                    -1, 0);
        if (made == MAP_FAILED)
            return NULL;
        *(size_t *)(void *)made = nbytes;
        made += HEAD_NBYTES;
    }
    if (head && made)
        memcpy(made, pointer, *head < nbytes ? *head : nbytes);
    if (head)
        (void)munmap(head, *head + HEAD_NBYTES);
    return made;
}

/* Whether a thread of this process sleeps in a call of the sanitizer's: the last number tells. */
static bool hangs_in_sanitizer(pid_t thread)
{
    char name[64], line[256] = "";
    Dl_info found = {0};

    (void)snprintf(name, sizeof name, "/proc/self/task/%d/syscall", (int)thread);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, line, sizeof line - 1) : 0;
    const char *last = n > 0 ? strrchr(line, ' ') : NULL;
    (void)close(fd);
    void *at = last ? (void *)strtoul(last, NULL, 0) : NULL;
    return at && dladdr(at, &found) && strstr(found.dli_fname, "libasan");
}

/* The alarm's: tells where the child hangs, and dies, unless it is the sanitizer that hangs. */
static void judge(int number, siginfo_t *info, void *context)
{
    void *at = NULL, *frames[30];
    Dl_info found = {0};

    (void)info;
#ifdef __x86_64__
    at = (void *)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#else
    (void)context;
#endif
    if (IS_SANITIZED && dladdr(at, &found) && strstr(found.dli_fname, "libasan"))
        _exit(SANITIZER_HANGS);
    for (pid_t thread = getpid() + 1; IS_SANITIZED && thread < getpid() + 500; thread++)
        if (hangs_in_sanitizer(thread))
            _exit(SANITIZER_HANGS);
    backtrace_symbols_fd(frames, backtrace(frames, 30), 2);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void set_alarm(void)
{
    const struct sigaction action = {.sa_sigaction = judge, .sa_flags = SA_SIGINFO};

    (void)sigaction(SIGALRM, &action, NULL);
    (void)alarm(IS_SANITIZED ? 5 : CHILD_SECONDS);
}

/* ---- in any thread, of both: ends the process with a sentence ---- */

static void expect(bool good, const char *what, const berth_error *error)
{
    if (good)
        return;
    fprintf(stderr, "%s: %s\n", what, error ? error->message : "");
    _exit(1);
}

static berth_value *values_of(berth_tree *tree)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    for (int i = 0; i < N_TENSORS; i++)
        berth_dict_set(root, names[i], test_tensor(tree, BERTH_FLOAT32, elements, 2, shapes[i]));
    return root;
}

static void save_to(const char *to)
{
    berth_error error;
    berth_tree *tree = berth_tree_new(&error);

    expect(tree, "a tree", &error);
    expect(berth_save(to, values_of(tree), NULL, &error) == 0, "a save", &error);
    berth_tree_free(tree);
}

/* One tensor, by its address or by copying it. */
static void check_tensor(berth_checkpoint *checkpoint, int i, bool is_copied)
{
    size_t nbytes = (size_t)shapes[i][0] * N_COLUMNS * sizeof *elements;
    const berth_tensor *tensor = berth_find_tensor(checkpoint, names[i], NULL);
    berth_error error;

    expect(tensor, names[i], NULL);
    float *copy = is_copied ? reallocate(NULL, NULL, nbytes) : NULL;
    const void *data = copy;
    if (copy)
        expect(berth_tensor_read(checkpoint, tensor, 0, shapes[i][0] * N_COLUMNS, copy, &error) ==
                   0,
               "a copy", &error);
    else
        expect((data = berth_tensor_data(checkpoint, tensor, &error)) != NULL, "data", &error);
    expect(memcmp(data, elements, nbytes) == 0, "other bytes", NULL);
    (void)reallocate(NULL, copy, 0);
}

static void check_all(berth_checkpoint *checkpoint)
{
    for (int i = 0; i < N_TENSORS; i++)
        check_tensor(checkpoint, i, i % 3 == 0);
}

static void open_and_check(void)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    expect(berth_open(path, NULL, &checkpoint, &error) == 0, "an open", &error);
    check_all(checkpoint);
    berth_close(checkpoint);
}

static void use_options(const char *value)
{
    berth_option option;
    berth_error error;

    expect(berth_config_set("io.memory_nbytes", value, NULL, &error) == 0, "set", &error);
    expect(berth_config_patch("io.memory_nbytes=1GiB", &error) == 0, "patch", &error);
    expect(berth_config_describe(NULL, "io.memory_nbytes", &option, &error) == 0, "get", &error);
    expect(berth_config_unpatch(&error) == 0, "unpatch", &error);
    expect(berth_config_parse("save.storage_alignment = 64\nload.check = maybe", NULL, NULL) != 0,
           "load", NULL);
    expect(berth_config_reset("io.memory_nbytes", &error) == 0, "reset", &error);
}

/* ---- the parent's threads ---- */

static atomic_bool is_over;
static atomic_uint round_number, n_idle;

static void *save_often(void *to)
{
    expect(berth_config_patch(OTHERS_OPTIONS, NULL) == 0, "options", NULL);
    while (!is_over)
        save_to(to);
    return NULL;
}

static void *set_often(void *unused)
{
    while (!is_over) {
        use_options("3GiB");
        open_and_check();
    }
    return unused;
}

static void *look_up_often(void *unused)
{
    const void *pointers[40];
    int64_t ids[40];
    berth_ticket ticket;
    berth_error error;

    for (int64_t n = 1; !is_over; n++) {
        for (int i = 0; i < 40; i++)
            ids[i] = (n * 7919 + i * 31) % shapes[0][0];
        expect(berth_rows_prefetch(rows, 0, ids, 40, &ticket, &error) == 0, "rows", &error);
        expect(berth_rows_wait(rows, ticket, pointers, &error) == 0, "lookup", &error);
        expect(berth_rows_release(rows, ticket, &error) == 0, "release", &error);
    }
    return unused;
}

/* Brings what is shared while the parent forks. */
static void *load_often(void *unused)
{
    unsigned seen = 0;

    expect(berth_config_patch(OTHERS_THREADS, NULL) == 0, "options", NULL);
    while (!is_over) {
        if (round_number == seen) {
            (void)sched_yield();
            continue;
        }
        seen = round_number;
        check_all(shared);
        atomic_fetch_add(&n_idle, 1);
    }
    return unused;
}

/* ---- the child ---- */

static void expect_refused(int status, const berth_error *error, const char *message)
{
    expect(status == BERTH_E_ARGUMENT && strcmp(error->message, message) == 0, "not refused",
           error);
}

/* What has threads is not there. */
static void check_refused(void)
{
    int64_t id = 0;
    berth_ticket ticket;
    size_t table;
    const void *pointer;
    berth_rows_stats stats;
    berth_prefetch_stats prefetch_stats;
    berth_error error;

    const berth_tensor *tensor = berth_find_tensor(shared, names[0], NULL);
    expect_refused(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), &error, REFUSED("job"));
    expect_refused(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error), &error, REFUSED("job"));
    expect(JOB_IS(job, BERTH_JOB_DONE) && JOB_IS(job, BERTH_JOB_STAGED) && !berth_job_cancel(job),
           "a job", NULL);
    expect_refused(berth_rows_prefetch(rows, 0, &id, 1, &ticket, &error), &error,
                   REFUSED("row cache"));
    expect_refused(berth_rows_wait(rows, kept_ticket, NULL, &error), &error, REFUSED("row cache"));
    expect_refused(berth_rows_wait(rows, kept_ticket, &pointer, &error), &error,
                   REFUSED("row cache"));
    expect_refused(berth_rows_release(rows, kept_ticket, &error), &error, REFUSED("row cache"));
    expect_refused(berth_rows_add(rows, shared, tensor, &table, &error), &error,
                   REFUSED("row cache"));
    expect_refused(berth_rows_get_stats(rows, &stats, &error), &error, REFUSED("row cache"));
    expect_refused(berth_prefetch_advance(prefetch, NULL, 0, -1, &error), &error,
                   REFUSED("prefetch"));
    expect_refused(berth_prefetch_advance(prefetch, tensor, 0, -1, &error), &error,
                   REFUSED("prefetch"));
    expect_refused(berth_prefetch_advance(prefetch, tensor, 0, 1, &error), &error,
                   REFUSED("prefetch"));
    expect_refused(berth_prefetch_get_stats(prefetch, &prefetch_stats, &error), &error,
                   REFUSED("prefetch"));
}

/* What the parent has open is there. */
static void read_on(void)
{
    berth_named_tensor named;
    berth_record record;
    berth_storage_stats stats;
    berth_info info;
    char version[8] = "";
    berth_error error;

    expect(berth_tensor_count(shared) == N_TENSORS, "a count", NULL);
    for (size_t i = 0; i < N_TENSORS; i++) {
        expect(berth_tensor_at(shared, i, &named, &error) == 0, "a name", &error);
        expect(strcmp(named.name, names[i]) == 0, named.name, NULL);
        expect(berth_storage_get_stats(shared, named.tensor->storage, &stats, &error) == 0, "stats",
               &error);
    }
    expect(berth_get_info(shared, &info, &error) == 0 && info.n_tensors == N_TENSORS, "info",
           &error);
    check_tensor(shared, N_TENSORS - 1, false);
    check_tensor(shared, N_TENSORS - 2, true);
    expect(berth_load(shared, NULL, NULL, &error) == 0, "a fetch", &error);
    check_all(shared);
    expect(berth_archive_find(archive, "version", &record, &error) == 0, "a record", &error);
    expect(berth_archive_read(archive, &record, version, 1, 0, &error) == 0 && version[0] == '3',
           version, &error);
}

/* A prefetch and a row cache of the child's own, on what its parent opened. */
static void prefetch_anew(void)
{
    berth_prefetch *mine;
    berth_error error;

    expect(berth_prefetch_begin(shared, NULL, 0, NULL, &mine, &error) == 0, "prefetch", &error);
    expect(berth_prefetch_advance(mine, NULL, 0, -1, &error) == 0, "wait", &error);
    berth_prefetch_free(mine);
}

static void cache_anew(void)
{
    const berth_tensor *tensor = berth_find_tensor(shared, names[0], NULL);
    const berth_rows_limits limits = {.cache_nbytes = 1 << 16};
    const void *pointers[2];
    const int64_t ids[2] = {3, 1};
    berth_rows *cache;
    berth_ticket ticket;
    berth_error error;
    size_t table;

    expect(berth_rows_new(&limits, NULL, &cache, &error) == 0, "cache", &error);
    expect(berth_rows_add(cache, shared, tensor, &table, &error) == 0, "add", &error);
    expect(berth_rows_prefetch(cache, table, ids, 2, &ticket, &error) == 0, "ids", &error);
    expect(berth_rows_wait(cache, ticket, pointers, &error) == 0, "rows", &error);
    expect(memcmp(pointers[0], elements + 3 * N_COLUMNS, N_COLUMNS * sizeof *elements) == 0,
           "other rows", NULL);
    berth_rows_free(cache);
}

static void free_inherited(void)
{
    berth_job_free(job);
    berth_prefetch_free(prefetch);
    berth_rows_free(rows);
    berth_archive_close(archive);
    berth_close(shared);
}

static void *read_beside(void *unused)
{
    check_all(shared);
    use_options("2GiB");
    return unused;
}

/* Two threads take the locks for the first time, at once. */
static void read_in_two_threads(void)
{
    pthread_t other;

    expect(pthread_create(&other, NULL, read_beside, NULL) == 0, "a thread", NULL);
    (void)read_beside(NULL);
    (void)pthread_join(other, NULL);
}

_Noreturn static void live(unsigned round, const char *to)
{
    set_alarm();
    expect(berth_config_patch(OTHERS_THREADS, NULL) == 0, "options", NULL);
    if (round % 2 && !IS_SANITIZED)
        read_in_two_threads();
    use_options("5GiB");
    check_refused();
    read_on();
    save_to(to);
    open_and_check();
    if (!IS_SANITIZED)
        prefetch_anew();
    cache_anew();
    free_inherited();
    _exit(0);
}

/* ---- the parent ---- */

static void begin_round(unsigned round, const char *job_path)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_error error;

    expect(berth_config_patch(ways[round % 4], NULL) == 0, ways[round % 4], NULL);
    expect(berth_open(path, NULL, &shared, &error) == 0, "shared", &error);
    expect(berth_archive_open(FROM_PATH(path), NULL, &archive, NULL, &error) == 0, "archive",
           &error);
    expect(berth_config_unpatch(NULL) == 0, "unpatch", NULL);
    expect(berth_save_begin(TO_PATH(job_path), OF_VALUE(values_of(tree)), BERTH_SAVE_SNAPSHOT, NULL,
                            &job, &error) == 0,
           "a job", &error);
    berth_tree_free(tree);
    expect(berth_prefetch_begin(shared, NULL, 0, NULL, &prefetch, &error) == 0, "prefetch", &error);
    n_idle = 0;
    round_number++;
}

static void end_round(void)
{
    berth_error error;

    while (n_idle < 1)
        (void)sched_yield();
    expect(berth_job_wait(job, BERTH_JOB_DONE, -1, &error) == 0, "the parent's job", &error);
    berth_job_free(job);
    berth_prefetch_free(prefetch);
    berth_archive_close(archive);
    berth_close(shared);
}

static unsigned n_sanitizer_hangs;

static void fork_once(unsigned round, const char *child_path)
{
    int status;

    (void)nanosleep(&(struct timespec){.tv_nsec = (long)(round * 7919 % 1000) * 1000}, NULL);
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        live(round, child_path);
    cr_assert_eq(waitpid(child, &status, 0), child);
    n_sanitizer_hangs += WIFEXITED(status) && WEXITSTATUS(status) == SANITIZER_HANGS;
    if (IS_SANITIZED && WIFEXITED(status) && WEXITSTATUS(status) == SANITIZER_HANGS)
        return;
    cr_assert_eq(status, 0, "round %u: the child ended with %x", round, (unsigned)status);
}

static void begin_rows(berth_checkpoint *table_of)
{
    const berth_rows_limits limits = {.cache_nbytes = 1 << 18};
    const int64_t ids[] = {5, 7};
    berth_error error;
    size_t table;

    expect(berth_rows_new(&limits, NULL, &rows, &error) == 0, "rows", &error);
    expect(berth_rows_add(rows, table_of, berth_find_tensor(table_of, names[0], NULL), &table,
                          &error) == 0,
           "a table", &error);
    expect(berth_rows_prefetch(rows, 0, ids, 2, &kept_ticket, &error) == 0, "a ticket", &error);
}

static void make_file(void)
{
    elements = calloc(N_TENSORS * 1000 * N_COLUMNS, sizeof *elements);
    for (int i = 0; i < N_TENSORS * 1000 * N_COLUMNS; i++)
        elements[i] = (float)i;
    for (int i = 0; i < N_TENSORS; i++) {
        shapes[i][0] = 1000 - 37 * i;
        shapes[i][1] = N_COLUMNS;
        (void)snprintf(names[i], sizeof names[i], "w%02d", i);
    }
    save_to(path);
}

static void fork_often(unsigned n)
{
    static void *(*const functions[])(void *) = {save_often, load_often, look_up_often, set_often};
    char *paths[] = {test_path(folder, "thread.pt"), test_path(folder, "job.pt"),
                     test_path(folder, "child.pt")};
    berth_checkpoint *table_of;
    pthread_t threads[4];
    berth_error error;

    if (IS_SANITIZED)
        berth_set_allocator(&(berth_allocator){.reallocate = reallocate});
    make_file();
    expect(berth_open(path, NULL, &table_of, &error) == 0, "an open", &error);
    begin_rows(table_of);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, functions[i], paths[0]), 0);
    for (unsigned round = 0; round < n; round++) {
        begin_round(round, paths[1]);
        fork_once(round, paths[2]);
        end_round();
    }
    is_over = true;
    printf("forks: %u, that hung in the sanitizer: %u\n", n, n_sanitizer_hangs);
    cr_assert_lt(n_sanitizer_hangs, n / 10 + 3, "the sanitizer leaves too few");
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    berth_rows_free(rows);
    berth_close(table_of);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(berth_verify(FROM_PATH(paths[i]), NULL, NULL, NULL, NULL, &error), 0, "%s",
                     error.message);
        free(paths[i]);
    }
    cr_assert_eq(test_folder_count(folder), 5, "more than the four files and the link");
    free(elements);
}

TestSuite(fork, .init = begin_faults, .fini = end_faults, .timeout = 3000);

/* X11 */
Test(fork, beside_threads_of_all_kinds_leaves_a_child_that_works)
{
    fork_often(test_is_long() ? 2000 : IS_SANITIZED ? 60 : 300);
}

/* X11: where the kernel has no page that it wipes. */
Test(fork, is_seen_by_the_process_s_id_too)
{
    bth_process_use_pids_as_numbers();
    fork_often(test_is_long() ? 200 : 20);
}
