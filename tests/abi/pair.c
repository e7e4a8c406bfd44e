/* Runs one of two ranks that connect through a shared folder, create an optimizer and print the
 * result. Usage: muonrt_c_pair RANK FOLDER RUN */
#include <muonrt/muonrt.h>
#include <stdio.h>
#include <stdlib.h>

static void check(muonrt_status_t status) {
  if (status == MUONRT_OK) return;
  printf("%s: %s\n", muonrt_status_get_name(status), muonrt_get_last_error());
  exit(1);
}

int main(int argc, char** argv) {
  const int64_t shape[2] = {4, 4}, ranks = 2;
  float shard[8] = {1.0f, 2.0f, 3.0f}, gradient[8] = {1.0f, 0.0f, 2.0f};
  const muonrt_placement_t rows = {MUONRT_PLACEMENT_SHARD, 0, 0};
  muonrt_comm_t* comm;
  muonrt_folder_options_t folder;
  muonrt_mesh_t mesh;
  muonrt_layout_t layout;
  muonrt_group_t group;
  muonrt_param_t param;
  muonrt_optimizer_t* optimizer;
  muonrt_status_t status;

  if (argc != 4) return 2;
  muonrt_folder_options_init(&folder);
  folder.rank = atoi(argv[1]);
  folder.size = 2;
  folder.path = argv[2];
  folder.run_id = argv[3];
  check(muonrt_comm_create_folder(&comm, &folder));

  muonrt_mesh_init(&mesh);
  mesh.ndim = 1;
  mesh.shape = &ranks;
  muonrt_layout_init(&layout);
  layout.mesh = &mesh;
  layout.placements = &rows;
  muonrt_group_init_muon(&group);
  muonrt_param_init(&param);
  param.name = "w";
  param.ndim = 2;
  param.shape = shape;
  param.layout = &layout;
  param.data = shard;
  param.grad = gradient;
  status = muonrt_optimizer_create(&optimizer, comm, NULL, &group, 1, &param, 1);
  if (status != MUONRT_OK) {
    printf("%s: %s\n", muonrt_status_get_name(status), muonrt_get_last_error());
    muonrt_comm_destroy(comm); /* rank 0 first forwards its last messages to rank 1 */
    return 1;
  }

  puts("agreed");
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
  return 0;
}
