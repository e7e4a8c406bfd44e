// Calls an installed copy of the library from C++17, with muonrt.hpp.
#include <iostream>
#include <muonrt/muonrt.hpp>

int main() {
  const muonrt_step_args_t args = muonrt::step_args();
  if (args.struct_size != sizeof args) return 1;
  std::cout << "muonrt " << muonrt_get_version() << ", " << muonrt_status_get_name(MUONRT_OK)
            << '\n';
  return muonrt_status_get_name(MUONRT_OK) == std::string("MUONRT_OK") ? 0 : 1;
}
