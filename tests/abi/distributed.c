/* Own owners and exchanges in C99 (muonrt/distributed.h). Matrices are sharded by rows; MPI_Gatherv
 * and MPI_Scatterv move them to their owners and back. The program trains with the exchanges of
 * muonrt, and then with its own for several settings of the overlap. All weights must be bitwise
 * identical. The argument is the thread level of MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "muonrt/mpi_comm.h"
#include "muonrt/muonrt.h"

enum { PARAMS = 4, STEPS = 3, LARGEST = 13 * 9, MAX_RANKS = 64 };

static const char* const names[PARAMS] = {"a", "b", "c", "d"};
static const int64_t shapes[PARAMS][2] = {{13, 9}, {5, 8}, {6, 15}, {3, 3}};
static const muonrt_placement_t rows = {MUONRT_PLACEMENT_SHARD, 0, 0};

typedef struct trainer {
  MPI_Comm comm; /* only for the functions */
  int size, rank, calls;
  muonrt_layout_t layout;
} trainer_t;

static void check(muonrt_status_t status) {
  if (status == MUONRT_OK) return;
  fprintf(stderr, "%s: %s\n", muonrt_status_get_name(status), muonrt_get_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The number of elements that each rank holds, and the position of its first one. */
static void count_elements(const trainer_t* t, int64_t param, int* counts, int* begins) {
  int at = 0;
  for (int r = 0; r < t->size; ++r) {
    int64_t local[2];
    check(muonrt_layout_get_local_shape(local, &t->layout, t->size, 2, shapes[param], r));
    begins[r] = at;
    counts[r] = (int)(local[0] * local[1]);
    at += counts[r];
  }
}

/* Round-robin. Any rank will do, because `gather` reaches it. */
static int assign(void* state, int64_t param, const muonrt_assign_info_t* info, int32_t* owner) {
  (void)state;
  *owner = (int32_t)(param % info->world);
  return 0;
}

/* The shards of rows, in rank order, are the whole matrix. Elements have the transport dtype, by
 * default bf16. A function without an error handler of its own returns MPI's error code. */
static int gather(void* state, int64_t param, int32_t owner, const void* local, void* full,
                  void* stream) {
  trainer_t* t = state;
  int counts[MAX_RANKS], begins[MAX_RANKS];
  (void)stream; /* NULL on the host */
  count_elements(t, param, counts, begins);
  ++t->calls;
  return MPI_Gatherv(local, counts[t->rank], MPI_UINT16_T, full, counts, begins, MPI_UINT16_T,
                     owner, t->comm);
}

static int redistribute(void* state, int64_t param, int32_t owner, const void* full, void* local,
                        void* stream) {
  trainer_t* t = state;
  int counts[MAX_RANKS], begins[MAX_RANKS];
  (void)stream;
  count_elements(t, param, counts, begins);
  ++t->calls;
  return MPI_Scatterv(full, counts, begins, MPI_UINT16_T, local, counts[t->rank], MPI_UINT16_T,
                      owner, t->comm);
}

/* This rank's elements of a pseudorandom matrix. */
static void fill(const trainer_t* t, int64_t param, int step, float* out) {
  int counts[MAX_RANKS], begins[MAX_RANKS];
  count_elements(t, param, counts, begins);
  for (int i = 0; i < counts[t->rank]; ++i) {
    const uint32_t x = (uint32_t)(param * 7919 + (begins[t->rank] + i) * 104729 + step * 1299709);
    out[i] = (float)(x * 2654435761u >> 8) / 8388608.0f - 1.0f;
  }
}

/* Trains from the same weights; returns the bytes that muonrt has sent. */
static int64_t train(trainer_t* t, const muonrt_distributed_config_t* config,
                     float weights[PARAMS][LARGEST]) {
  static float grads[PARAMS][LARGEST];
  muonrt_comm_t* comm = NULL;
  muonrt_optimizer_t* optimizer = NULL;
  muonrt_param_t params[PARAMS];
  muonrt_group_t group;
  muonrt_tuning_options_t tuning;
  muonrt_optimizer_options_t options;
  muonrt_step_args_t args;
  muonrt_counters_t counters;
  muonrt_group_init_muon(&group);
  muonrt_tuning_options_init(&tuning);
  tuning.distributed = config; /* NULL: the exchanges of muonrt */
  muonrt_optimizer_options_init(&options);
  options.tuning = &tuning;
  for (int i = 0; i < PARAMS; ++i) {
    fill(t, i, 0, weights[i]);
    muonrt_param_init(&params[i]);
    params[i].name = names[i];
    params[i].ndim = 2;
    params[i].shape = shapes[i];
    params[i].layout = &t->layout;
    params[i].data = weights[i];
    params[i].grad = grads[i];
  }
  check(muonrt_comm_create_mpi(&comm, MPI_COMM_WORLD, 60000));
  check(muonrt_optimizer_create(&optimizer, comm, &options, &group, 1, params, PARAMS));
  muonrt_step_args_init(&args);
  args.lr = 0.02;
  for (int step = 1; step <= STEPS; ++step) {
    for (int i = 0; i < PARAMS; ++i) fill(t, i, step, grads[i]);
    check(muonrt_optimizer_step(NULL, optimizer, &args));
  }
  muonrt_counters_init(&counters);
  check(muonrt_optimizer_get_counters(&counters, optimizer));
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
  return counters.bytes_sent;
}

int main(int argc, char** argv) {
  static const char* const levels[] = {"single", "funneled", "serialized", "multiple"};
  static const int values[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                               MPI_THREAD_MULTIPLE};
  static float built_in[PARAMS][LARGEST], own[PARAMS][LARGEST];
  muonrt_distributed_config_t config;
  trainer_t t;
  int level = 3, provided, failed = 0;
  for (int i = 0; argc > 1 && i < 4; ++i)
    if (strcmp(argv[1], levels[i]) == 0) level = i;
  MPI_Init_thread(&argc, &argv, values[level], &provided);
  MPI_Comm_dup(MPI_COMM_WORLD, &t.comm);
  MPI_Comm_size(t.comm, &t.size);
  MPI_Comm_rank(t.comm, &t.rank);
  t.calls = 0;
  muonrt_layout_init(&t.layout); /* over all ranks */
  t.layout.placements = &rows;
  if (train(&t, NULL, built_in) == 0 && t.size > 1) failed = 1;

  muonrt_distributed_config_init(&config);
  config.state = &t;
  config.assign = assign;
  config.gather = gather;
  config.redistribute = redistribute;
  for (int async = 0; async <= 1; ++async) {
    for (int prefetch = 0; prefetch <= 2; prefetch += 2) {
      config.async_parallelism = async; /* 0, with prefetch_count 0: one call at a time, to debug */
      config.prefetch_count = prefetch;
      t.calls = 0;
      if (train(&t, &config, own) != 0 || t.calls != 2 * STEPS * PARAMS ||
          memcmp(built_in, own, sizeof own) != 0) {
        fprintf(stderr, "rank %d: differs with async %d, prefetch %d\n", t.rank, async, prefetch);
        failed = 1;
      }
    }
  }
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, t.comm);
  if (t.rank == 0) printf("%d ranks: %s\n", t.size, failed ? "FAILED" : "the same weights");
  MPI_Comm_free(&t.comm);
  MPI_Finalize();
  return failed;
}
