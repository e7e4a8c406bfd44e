// The same from C++17, by the headers that C++ programs include.
#include <iostream>
#include <muonrt/muonrt.hpp>

int main() {
  muonrt_step_args_t step;
  muonrt_step_args_init(&step);
  if (step.struct_size != sizeof step) return 1;
  std::cout << "muonrt " << muonrt_get_version() << ", " << muonrt_status_get_name(MUONRT_OK)
            << '\n';
  return muonrt_status_get_name(MUONRT_OK) == std::string("MUONRT_OK") ? 0 : 1;
}
