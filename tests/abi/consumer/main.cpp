// The same from C++17, by the headers that C++ programs include.
#include <iostream>
#include <muonrt/muonrt.hpp>

int main() {
  std::cout << "muonrt " << muonrt_version() << ", " << muonrt_status_name(MUONRT_OK) << '\n';
  return muonrt_status_name(MUONRT_OK) == std::string("MUONRT_OK") ? 0 : 1;
}
