#include <stdint.h>
#include <stdlib.h>
#include <string.h>
extern uint32_t __stack; extern char __bss_start__, __bss_end__;
extern void initialise_monitor_handles(void); extern void __libc_init_array(void); extern int main(int, char**);
void Reset(void) {
  *(volatile uint32_t*)0xE000ED88 |= 0xFu << 20;  /* FPU, MVE */
  __asm volatile("dsb\nisb");
  memset(&__bss_start__, 0, &__bss_end__ - &__bss_start__);
  initialise_monitor_handles();
  __libc_init_array();
  exit(main(0, 0));
}
void Fault(void) { __asm volatile("mov r0,#0x18\n ldr r1,=0x20023\n bkpt 0xab"); for(;;); }
__attribute__((section(".vectors"), used)) void* const vectors[16] = {&__stack, Reset, Fault, Fault, Fault, Fault, Fault};
