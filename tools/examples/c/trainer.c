/* Trains on one rank, or on several ranks under mpirun. The program fits W x + b, with a matrix W
 * and a bias b, to the output of a fixed teacher model. W and b are sharded by rows. Muon updates W
 * and AdamW updates b. The loss must fall below a twentieth of its first value. */
#include <muonrt/muonrt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef USE_MPI
#include <muonrt/mpi_comm.h>
#endif

enum { ROWS = 13, COLS = 16, SAMPLES = 64, STEPS = 200 };

static void check(muonrt_status_t status) {
  if (status == MUONRT_OK) return;
  fprintf(stderr, "%s: %s\n", muonrt_status_get_name(status), muonrt_get_last_error());
  exit(1);
}

/* Returns number i of a pseudorandom sequence in [-1, 1), which is the same on every rank. */
static float noise(int64_t i) {
  uint32_t x = (uint32_t)i * 0x9e3779b1u;
  x = (x ^ (x >> 15)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return (float)((x ^ (x >> 16)) >> 8) / 8388608.0f - 1.0f;
}

/* Computes the loss and the gradients of `rows` rows, beginning with row `first`. */
static double backward(int64_t first, int64_t rows, const float* w, const float* b, float* w_grad,
                       float* b_grad) {
  double loss = 0.0;
  memset(w_grad, 0, sizeof(float) * (size_t)(rows * COLS));
  memset(b_grad, 0, sizeof(float) * (size_t)rows);
  for (int64_t s = 0; s < SAMPLES; ++s) {
    for (int64_t r = 0; r < rows; ++r) {
      float error = b[r] - noise(9000 + first + r);
      for (int64_t i = 0; i < COLS; ++i)
        error += (w[r * COLS + i] - noise(5000 + (first + r) * COLS + i)) * noise(s * COLS + i);
      loss += (double)error * error / SAMPLES;
      b_grad[r] += 2.0f * error / SAMPLES;
      for (int64_t i = 0; i < COLS; ++i)
        w_grad[r * COLS + i] += 2.0f * error / SAMPLES * noise(s * COLS + i);
    }
  }
  return loss;
}

static int train(muonrt_comm_t* comm) {
  static const int64_t shape[2] = {ROWS, COLS};
  static const muonrt_placement_t by_rows = {MUONRT_PLACEMENT_SHARD, 0, 0};
  static float w[ROWS * COLS], w_grad[ROWS * COLS], b[ROWS], b_grad[ROWS];
  int32_t rank, ranks;
  int64_t local[2], n_runs;
  muonrt_run_t run = {0, 0}; /* stays empty on a rank without rows */
  muonrt_layout_t layout;
  muonrt_group_t groups[2];
  muonrt_param_t params[2];
  muonrt_optimizer_t* optimizer;
  double loss = 0.0, begin = 0.0;

  check(muonrt_comm_get_rank(&rank, comm));
  check(muonrt_comm_get_size(&ranks, comm));
  muonrt_layout_init(&layout); /* without a mesh, the layout is over all ranks */
  layout.placements = &by_rows;
  check(muonrt_layout_get_local_shape(local, &layout, ranks, 2, shape, rank));
  check(muonrt_layout_get_runs(&run, 1, &n_runs, &layout, ranks, 2, shape, rank, 0));

  muonrt_group_init_muon(&groups[0]);
  muonrt_group_init_adamw(&groups[1]);
  for (int i = 0; i < 2; ++i) {
    groups[i].weight_decay = 0.0;
    muonrt_param_init(&params[i]);
    params[i].group = i;
    params[i].name = i == 0 ? "w" : "b";
    params[i].ndim = i == 0 ? 2 : 1;
    params[i].shape = shape; /* shape of the whole tensor */
    params[i].layout = &layout;
    params[i].data = i == 0 ? w : b; /* this rank's rows */
    params[i].grad = i == 0 ? w_grad : b_grad;
  }
  check(muonrt_optimizer_create(&optimizer, comm, NULL, groups, 2, params, 2));

  for (int step = 0; step < STEPS; ++step) {
    muonrt_step_args_t args;
    loss = backward(run.begin, local[0], w, b, w_grad, b_grad);
    check(muonrt_comm_allreduce_sum(&loss, comm, &loss, 1));
    if (step == 0) begin = loss;
    muonrt_step_args_init(&args);
    args.lr = 0.05 * (1.0 - (double)step / STEPS);
    check(muonrt_optimizer_step(NULL, optimizer, &args));
  }
  if (rank == 0) printf("%d ranks: loss %.4f -> %.6f\n", (int)ranks, begin, loss);
  muonrt_optimizer_destroy(optimizer);
  return loss < begin / 20.0 ? 0 : 1;
}

int main(int argc, char** argv) {
  muonrt_comm_t* comm;
  int failed;
#ifdef USE_MPI
  MPI_Init(&argc, &argv);
  check(muonrt_comm_create_mpi(&comm, MPI_COMM_WORLD, 60000));
#else
  (void)argc;
  (void)argv;
  check(muonrt_comm_create_self(&comm));
#endif
  failed = train(comm);
  muonrt_comm_destroy(comm);
#ifdef USE_MPI
  MPI_Finalize();
#endif
  return failed;
}
