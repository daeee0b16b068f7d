// Runs on the emulated CPU: maps the memory of the process that starts it at the same address, loads the C++ ops, and
// calls their functions by the lines that it reads: a name and ten integers. Answers with what each call returns.
//
// guest OPS MEMORY ADDRESS BYTES
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

int main(int count, char** arguments) {
  if (count != 5) return 2;
  void* address = reinterpret_cast<void*>(std::strtoull(arguments[3], nullptr, 10));
  const int memory = open(arguments[2], O_RDWR);
  const size_t bytes = std::strtoull(arguments[4], nullptr, 10);
  if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, memory, 0) != address) {
    std::perror("the memory cannot be mapped");
    return 1;
  }
  void* ops = dlopen(arguments[1], RTLD_NOW);
  if (ops == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  char name[64];
  int64_t a[10];
  for (;;) {
    if (std::scanf("%63s", name) != 1) return 0;
    for (int64_t& argument : a)
      if (std::scanf("%ld", &argument) != 1) return 2;
    // all arguments are pointers or integers, which take a register or eight bytes each, whatever their size
    auto* function = reinterpret_cast<int64_t (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                                  int64_t, int64_t)>(dlsym(ops, name));
    if (function == nullptr) return 3;
    std::printf("%ld\n", function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]));
    std::fflush(stdout);
  }
}
