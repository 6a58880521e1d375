export type VNode = any;
export function h(type: any, props?: any, ...children: any[]): VNode;
export function render(vnode: VNode, parent: Element): void;
export class Component<P = any, S = any> {
  constructor(props?: P);
  props: P;
  state: S;
  setState(state: Partial<S>): void;
  render(props?: P, state?: S): VNode;
}
