#include <muonrt/muonrt.h>
#include <stdio.h>
#include <stdlib.h>

static void check(muonrt_status_t status) {
  if (status == MUONRT_OK) return;
  fprintf(stderr, "%s: %s\n", muonrt_status_name(status), muonrt_last_error());
  exit(1);
}

int main(void) {
  const int64_t shape[2] = {4, 3};     /* of the whole tensor */
  float shard[12], shard_gradient[12]; /* this rank's part; stays yours */
  const muonrt_placement_t rows = {MUONRT_PLACEMENT_SHARD, 0, 0}; /* dimension 0 cut over ranks */
  muonrt_comm_t* comm;
  muonrt_mesh_t mesh;
  muonrt_layout_t layout;
  muonrt_group_t group;
  muonrt_param_t param;
  muonrt_optimizer_t* optimizer;
  muonrt_step_t step;
  int32_t size;
  int64_t ranks;

  /* One rank; or MPI, TCP, a folder, threads, functions of your own. */
  check(muonrt_comm_create_self(&comm));
  check(muonrt_comm_size(&size, comm));
  ranks = size;
  for (int i = 0; i < 12; ++i) {
    shard[i] = 0.1f * (float)i;
    shard_gradient[i] = i % 4 == 0 ? 1.0f : 0.0f;
  }

  muonrt_mesh_init(&mesh); /* every _init sets all defaults; change what you want */
  mesh.ndim = 1;
  mesh.shape = &ranks;
  muonrt_layout_init(&layout); /* how a tensor lies over the mesh */
  layout.mesh = &mesh;
  layout.placements = &rows;
  muonrt_group_init(&group, MUONRT_ROLE_MUON);
  muonrt_param_init(&param);
  param.name = "w1";
  param.ndim = 2;
  param.shape = shape;
  param.layout = &layout;
  param.data = shard;
  param.grad = shard_gradient;
  check(muonrt_optimizer_create(&optimizer, comm, NULL, &group, 1, &param, 1));

  muonrt_step_init(&step);
  step.lr = 0.02;
  check(muonrt_optimizer_step(optimizer, &step, NULL)); /* all ranks, or none of them */
  printf("w1[0] = %.5f\n", (double)shard[0]);

  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
  return 0;
}
